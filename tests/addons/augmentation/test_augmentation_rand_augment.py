"""RandAugment and colours. Oracles: Pillow for each operation; torchvision's magnitudes and hue, in figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.addons.augmentation import image_filters
from dsinga.addons.augmentation.images import OPERATIONS, apply
from tests.support.augmentations import draws, images, make_one

Image = pytest.importorskip("PIL.Image")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance")
ImageOps = pytest.importorskip("PIL.ImageOps")

# torchvision 0.28.0: transforms.autoaugment.RandAugment()._augmentation_space(31, (32, 32)), magnitudes 9 and 30
MAGNITUDES = {
    "ShearX": (0.09, 0.3), "ShearY": (0.09, 0.3), "TranslateX": (4.35045, 14.50151), "TranslateY": (4.35045, 14.50151),
    "Rotate": (9.0, 30.0), "Brightness": (0.27, 0.9), "Color": (0.27, 0.9), "Contrast": (0.27, 0.9),
    "Sharpness": (0.27, 0.9), "Posterize": (7, 4), "Solarize": (178.5, 0.0), "Identity": (0, 0),
    "AutoContrast": (0, 0), "Equalize": (0, 0),
}  # fmt: skip


def affine(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


# What torchvision's _apply_op does with images of Pillow; m is the magnitude with its sign
PILLOW = {
    "Identity": lambda image, m: image,
    "ShearX": lambda image, m: affine(image, 1, m, 0, 0, 1, 0),
    "ShearY": lambda image, m: affine(image, 1, 0, 0, m, 1, 0),
    "TranslateX": lambda image, m: affine(image, 1, 0, -int(m), 0, 1, 0),
    "TranslateY": lambda image, m: affine(image, 1, 0, 0, 0, 1, -int(m)),
    "Rotate": lambda image, m: image.rotate(m, Image.Resampling.NEAREST),
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1 + m),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(1 + m),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(1 + m),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(1 + m),
    "Posterize": lambda image, m: ImageOps.posterize(image, int(m)),
    "Solarize": lambda image, m: ImageOps.solarize(image, m),
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
}
SIGNED = [*PILLOW][1:10]


def pillow(name, x, magnitude, signs):
    """Return the images of Pillow, (n, C, H, W)."""
    made = []
    for image, sign in zip(x, signs, strict=True):
        picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
        result = np.asarray(PILLOW[name](picture, magnitude * (sign if name in SIGNED else 1)))
        made.append(result[None] if result.ndim == 2 else result.transpose(2, 0, 1))
    return np.stack(made)


def varied(channels):
    """Return noise, smooth images, few colours, one colour, and little contrast."""
    x = images(6, 32, 32, channels)
    x[1] = np.add.outer(np.arange(32), 3 * np.arange(32)) % 256
    x[2] = x[2] // 100 * 100
    x[3] = 41
    x[4] = 90 + x[4] // 16
    return x


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_bits_of_pillow(name, column, channels):
    x, signs = varied(channels), np.array([1, -1, 1, 1, -1, -1.0])
    expected = pillow(name, x, MAGNITUDES[name][column], signs)
    np.testing.assert_array_equal(apply(name, x.copy(), (9, 30)[column], signs), expected)


def test_there_are_torchvisions_fourteen_operations():
    assert OPERATIONS.keys() == MAGNITUDES.keys() == PILLOW.keys()


@given(factor=st.floats(0, 3), seed=st.integers(0, 99))
def test_factors_have_the_bits_of_pillow(factor, seed):
    x = images(1, 8, 9, seed=seed)
    for name, kind in (("brightness", "Brightness"), ("contrast", "Contrast"), ("saturation", "Color")):
        picture = getattr(ImageEnhance, kind)(Image.fromarray(x[0].transpose(1, 2, 0))).enhance(factor)
        changed = getattr(image_filters, name)(x, np.array([factor]))
        np.testing.assert_array_equal(changed[0], np.asarray(picture).transpose(2, 0, 1), err_msg=name)


def test_hue_is_torchvisions():
    colors = np.array([[200, 10, 30, 90, 255, 0, 77], [13, 200, 30, 80, 254, 0, 77], [50, 90, 30, 250, 0, 0, 78]])
    # torchvision 0.28.0, v2.functional.adjust_hue(tensor, 0.2)
    turned = [[200, 10, 30, 250, 0, 0, 78], [200, 82, 30, 80, 255, 0, 77], [13, 200, 30, 206, 50, 0, 78]]
    x = colors.astype(np.uint8).reshape(1, 3, 1, 7)
    np.testing.assert_array_equal(image_filters.hue(x, np.array([0.2])).reshape(3, 7), turned)
    np.testing.assert_allclose(image_filters.hue(x, np.array([0.0])), x, atol=1)


def test_color_jitter_applies_its_parts_in_order():
    x = images()
    jitter = make_one(x, type="kColorJitter", brightness=0.4, contrast=0.3, saturation=2.0, hue=0.1)
    uniform = draws(jitter, len(x))
    expected = image_filters.brightness(x, 0.6 + 0.8 * uniform[:, 0])
    expected = image_filters.contrast(expected, 0.7 + 0.6 * uniform[:, 1])
    expected = image_filters.saturation(expected, 3 * uniform[:, 2])
    expected = image_filters.hue(expected, -0.1 + 0.2 * uniform[:, 3])
    np.testing.assert_array_equal(jitter.augment(x.copy(), uniform), expected)


def test_rand_augment_applies_the_operations_that_were_drawn():
    x = images(40, 32, 32)
    augment = make_one(x, type="kRandAugment", num_ops=3, magnitude=12)
    uniform, names = draws(augment, len(x)), list(OPERATIONS)
    changed = augment.augment(x.copy(), uniform)
    for row in range(len(x)):
        expected = x[row : row + 1]
        for number in range(3):
            name, sign = names[int(uniform[row, 2 * number] * 14)], 1.0 if uniform[row, 2 * number + 1] < 0.5 else -1.0
            expected = apply(name, expected, 12, np.array([sign]))
        np.testing.assert_array_equal(changed[row : row + 1], expected)
