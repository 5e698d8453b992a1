"""Augmentations of images, Mixup and CutMix, and their random numbers. Oracles: torch, Random123, scipy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.addons.augmentation import image_filters
from dsinga.addons.augmentation.augmentation import _philox, pick, stream_key, uniform
from dsinga.addons.augmentation.crops import symmetric_beta
from dsinga.addons.augmentation.images import EIGENVALUES, EIGENVECTORS, OPERATIONS, apply, normal, rotations
from dsinga.addons.augmentation.resampling import Boxes, resize, transform_bilinear
from dsinga.base.errors import UserError
from tests.support.augmentations import draws, images, make_list, make_one
from tests.support.refusals import refused


def test_random_crop_is_a_window_of_the_padded_image():
    x = images()
    crop = make_one(x, type="kRandomCrop", size=[12, 15], pad=3)
    uniform = draws(crop, len(x))
    padded = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    tops, lefts = (uniform * [16 + 6 - 12 + 1, 20 + 6 - 15 + 1]).astype(int).T
    expected = [padded[i, :, top : top + 12, c : c + 15] for i, (top, c) in enumerate(zip(tops, lefts, strict=True))]
    np.testing.assert_array_equal(crop.augment(x.copy(), uniform), expected)
    np.testing.assert_array_equal(crop.evaluate(x), padded[:, :, 5:17, 5:20])


def test_random_crop_of_the_images_size_leaves_other_phases_alone():
    x = images()
    crop = make_one(x, type="kRandomCrop", pad=4)
    assert crop.shape == (3, 16, 20)
    assert crop.evaluate(x) is x


def test_every_place_of_a_crop_is_as_probable():
    places = pick(np.linspace(1e-9, 1 - 1e-9, 9000), 0, 9)
    assert np.bincount(places).tolist() == [1000] * 9


def test_flips_are_those_of_numpy():
    x = images()
    flip = make_one(x, type="kRandomFlip", horizontal=0.5, vertical=0.25)
    uniform = np.array([[0.4, 0.9], [0.6, 0.1], [0.1, 0.1], [0.7, 0.7], [0.5, 0.25], [0.49, 0.24]])
    expected = [x[0, :, :, ::-1], x[1, :, ::-1], x[2, :, ::-1, ::-1], x[3], x[4], x[5, :, ::-1, ::-1]]
    np.testing.assert_array_equal(flip.augment(x.copy(), uniform), expected)


@pytest.mark.parametrize("size", [(24, 24), (5, 7), (11, 40)])
@pytest.mark.parametrize("box", [(2, 3, 11, 13), (0, 0, 16, 20), (15, 19, 1, 1)])
def test_resizing_is_torchs_with_antialiasing(size, box):
    torch = pytest.importorskip("torch")
    x = images().astype(np.float32)
    top, left, height, width = box
    part = torch.tensor(x[:, :, top : top + height, left : left + width])
    expected = torch.nn.functional.interpolate(part, size, mode="bilinear", antialias=True, align_corners=False)
    boxes = Boxes(*(np.full(len(x), number) for number in box))
    np.testing.assert_allclose(resize(x, boxes, size), expected.numpy(), atol=1e-3)
    rounded = resize(x.astype(np.uint8), boxes, size)
    assert rounded.dtype == np.uint8
    np.testing.assert_array_less(np.abs(rounded - expected.numpy()), 0.501)


def test_resized_crops_have_the_areas_and_ratios_that_were_asked_for():
    x = images(count=2000, height=40, width=50, channels=1)
    crop = make_one(x, type="kRandomResizedCrop", size=[8], scale=[0.2, 0.6], ratio=[0.5, 2.0])
    uniform = draws(crop, len(x))
    box = crop.boxes(uniform)
    np.testing.assert_array_equal(crop.augment(x, uniform), resize(x, box, (8, 8)))
    areas, ratios = box.heights * box.widths / 2000, box.widths / box.heights
    assert 0.18 < areas.min() < 0.22 < 0.58 < areas.max() < 0.62
    assert 0.48 < ratios.min() < 0.55 < 1.8 < ratios.max() < 2.1
    assert abs(np.log(ratios).mean()) < 0.1
    assert (box.tops + box.heights <= 40).all()
    assert (box.lefts + box.widths <= 50).all()


def test_a_resized_crop_that_fits_nowhere_is_the_largest_in_the_centre():
    x = images(height=10, width=100)
    crop = make_one(x, type="kRandomResizedCrop", size=[10], scale=[0.9, 1.0], ratio=[0.5, 2.0])
    expected = resize(x, Boxes(*(np.full(len(x), number) for number in (0, 40, 10, 20))), (10, 10))
    np.testing.assert_array_equal(crop.augment(x, draws(crop, len(x))), expected)


def test_outside_training_a_resized_crop_is_the_centre():
    x = images(height=32, width=48)
    crop = make_one(x, type="kRandomResizedCrop", size=[16])
    expected = resize(x, Boxes(*(np.full(len(x), number) for number in (2, 10, 28, 28))), (16, 16))
    np.testing.assert_array_equal(crop.evaluate(x), expected)


@pytest.mark.parametrize("angle", [25.0, -90.0, 180.0, 3.0])
def test_rotation_is_torchs_sampling_of_a_turned_grid(angle):
    torch = pytest.importorskip("torch")
    x = images().astype(np.float32)
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    height, width = x.shape[2:]  # torchvision's F.rotate with InterpolationMode.BILINEAR, in torch's own units
    theta = torch.tensor([[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]])
    grid = torch.nn.functional.affine_grid(theta.expand(len(x), 2, 3), x.shape, align_corners=False)
    expected = torch.nn.functional.grid_sample(torch.tensor(x), grid, align_corners=False)
    turned = transform_bilinear(x, rotations(np.full(len(x), angle), height, width))
    np.testing.assert_allclose(turned, expected.numpy(), atol=2e-3)


def test_erasing_fills_a_rectangle_of_the_area_that_was_asked_for():
    x = np.full((3000, 1, 40, 40), 7, np.uint8)
    erasing = make_one(x, type="kRandomErasing", probability=0.25, scale=[0.1, 0.2], ratio=[0.5, 2.0], value=200)
    erased = erasing.augment(x.copy(), draws(erasing, len(x)))[:, 0] == 200
    changed = erased.any(axis=(1, 2))
    assert abs(changed.mean() - 0.25) < 0.03
    heights, widths = erased.any(axis=2).sum(axis=1)[changed], erased.any(axis=1).sum(axis=1)[changed]
    areas = erased.sum(axis=(1, 2))[changed]
    np.testing.assert_array_equal(areas, heights * widths)  # rectangles
    assert 140 < areas.min() < 180 < 300 < areas.max() < 340
    assert 0.45 < (heights / widths).min() < 0.6 < 1.6 < (heights / widths).max() < 2.2


def test_lighting_adds_principal_components():
    x = images()
    lighting = make_one(x, type="kLighting", std=0.2)
    uniform = draws(lighting, len(x))
    alphas = 0.2 * normal(uniform)[:, :3]
    expected = x + (alphas * EIGENVALUES @ EIGENVECTORS.T)[:, :, None, None]
    lit = lighting.augment(x, uniform)
    assert lit.dtype == np.float32
    np.testing.assert_allclose(lit, expected, atol=1e-4)
    np.testing.assert_allclose(EIGENVECTORS.T @ EIGENVECTORS, np.eye(3), atol=1e-3)


@pytest.mark.parametrize(
    ("message", "shape", "dtype", "text"),
    [
        ({"type": "kRandomCrop", "size": [30]}, (3, 16, 20), "u1", "cannot cut 30 x 30 out of images of 16 x 20"),
        ({"type": "kRandomCrop"}, (7,), "f4", "takes images .channels, height, width., but a record has 1 axes"),
        ({"type": "kColorJitter"}, (3, 8, 8), "f4", "takes records of uint8, but gets float32"),
        ({"type": "kColorJitter"}, (8, 9, 3), "u1", "takes images of 1 or 3 channels, not of 8; .*_last"),
        ({"type": "kLighting"}, (1, 8, 8), "u1", "takes images of 3 channels, not of 1"),
    ],
)
def test_records_that_do_not_fit_are_refused(message, shape, dtype, text):
    refused(lambda: make_list(np.zeros((1, *shape), dtype), message), f"layer 'data': {message['type']} {text}")


def test_mixup_adds_the_rolled_batch_with_its_labels():
    torch = pytest.importorskip("torch")
    x, labels = images(8), np.arange(8)
    chain, mixup = make_list(x, {"type": "kMixup", "alpha": 0.4}), make_one(x, type="kMixup", alpha=0.4)
    rolled = np.r_[7, np.arange(8)]  # the part of the worker that has the whole batch: the last record is read again
    numbers, epochs = rolled + 100, np.zeros(9, int)
    mixed, soft = chain.augment(x[rolled], labels[rolled], numbers, epochs)
    from dsinga.addons.augmentation.augmentation import stream_key, uniform

    share = symmetric_beta(uniform(stream_key(0, 0), numbers[1:], epochs[1:], mixup.draws)[:, 0], 0.4)
    lam = torch.tensor(share, dtype=torch.float32)
    batch, hot = torch.tensor(x), torch.nn.functional.one_hot(torch.tensor(labels), 10).float()
    by_image = lam[:, None, None, None]
    expected = batch.roll(1, 0) * (1 - by_image) + batch * by_image  # torchvision's MixUp._transform, λ by record
    np.testing.assert_allclose(mixed, expected.numpy(), atol=1e-4)
    np.testing.assert_allclose(soft, (hot.roll(1, 0) * (1 - lam[:, None]) + hot * lam[:, None]).numpy(), atol=1e-6)
    assert mixed.dtype == soft.dtype == np.float32


def test_cutmix_pastes_torchvisions_box():
    x = images(50, 16, 20)
    cutmix = make_one(x, type="kCutMix")
    uniform = draws(cutmix, 49)
    mixed, shares = cutmix.mix(x[1:].copy(), x[:-1], uniform)
    for row in range(49):
        lam = uniform[row, 0]  # Beta(1, 1) is uniform
        r_x, r_y, r = int(uniform[row, 1] * 20), int(uniform[row, 2] * 16), 0.5 * math.sqrt(1 - lam)
        x1, x2 = max(r_x - int(r * 20), 0), min(r_x + int(r * 20), 20)
        y1, y2 = max(r_y - int(r * 16), 0), min(r_y + int(r * 16), 16)
        expected = x[row + 1].copy()
        expected[:, y1:y2, x1:x2] = x[row][:, y1:y2, x1:x2]
        np.testing.assert_array_equal(mixed[row], expected)
        assert shares[row] == pytest.approx(1 - (x2 - x1) * (y2 - y1) / 320)


@pytest.mark.parametrize("kind", ["kMixup", "kCutMix"])
def test_a_probability_leaves_other_records_alone(kind):
    x = images(400)
    mixing = make_one(x, type=kind, probability=0.3, alpha=1.0)
    mixed, shares = mixing.mix(x[1:].copy(), x[:-1], draws(mixing, 399))
    alone = shares == 1
    assert 0.6 < alone.mean() < 0.8
    np.testing.assert_array_equal(mixed[alone], x[1:][alone])


def test_targets_that_are_numbers_are_mixed_as_numbers():
    from dsinga.addons.augmentation import create_augmentations
    from dsinga.job import StoreConf
    from dsinga.layers import RecordInfo

    x, y = images(4), np.array([[1.0, 2], [3, 5], [0, 0], [8, 8]], np.float32)
    labels = RecordInfo((3, 16, 20), 4, label_shape=(2,), label_dtype=np.float32)
    conf = StoreConf(augment=[{"type": "kMixup", "alpha": 1.0}])
    chain = create_augmentations("data", conf, (3, 16, 20), np.uint8, seed=0, training=True, labels=labels)
    mixed, soft = chain.augment(x.copy(), y, np.arange(4), np.zeros(4, int))
    share = ((mixed - x[:-1]) / (x[1:].astype(np.float32) - x[:-1] + 1e-9)).reshape(3, -1)
    share = np.median(share, axis=1)[:, None]
    np.testing.assert_allclose(soft, share * y[1:] + (1 - share) * y[:-1], atol=1e-3)


def test_labels_of_other_classes_are_refused():
    refused(lambda: make_list(images(), {"type": "kMixup", "classes": 5}), "5, but there", "give 10 or")
    chain = make_list(images(), {"type": "kMixup"})
    with pytest.raises(UserError, match="kMixup gets the label 12, which is none of 10 classes"):
        chain.augment(images(3), np.array([1, 12, 2]), np.arange(3), np.zeros(3, int))


# kat_vectors of Random123 1.14: counter, key, result
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_words_are_those_of_random123(counter, key, expected):
    words = _philox(key, *(np.array([[word]], np.uint64) for word in counter))
    assert [int(word[0, 0]) for word in words] == list(expected)


def test_seeds_streams_and_epochs_have_numbers_of_their_own():
    records = np.arange(1000)
    columns = [
        uniform(stream_key(seed, stream), records, np.full(1000, epoch), 1)[:, 0]
        for seed in (0, 1)
        for stream in (0, 1)
        for epoch in (0, 1)
    ]
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlations).max() < 0.15
    assert np.abs(np.mean(columns, axis=1) - 0.5).max() < 0.05


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 1.0, 2.0, 8.0, 100.0])
def test_beta_is_scipys(alpha):
    stats = pytest.importorskip("scipy.stats")
    numbers = (np.arange(5000) + 0.5) / 5000
    np.testing.assert_allclose(symmetric_beta(numbers, alpha), stats.beta.ppf(numbers, alpha, alpha), atol=1e-7)


def test_normal_numbers_are_normal():
    stats = pytest.importorskip("scipy.stats")
    numbers = normal(uniform(stream_key(0, 0), np.arange(5000), np.zeros(5000), 4))
    assert numbers.shape == (5000, 4)
    assert min(stats.kstest(column, "norm").pvalue for column in numbers.T) > 0.01
    assert np.abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.05


# RandAugment and colours. Oracles: Pillow for each operation; torchvision's magnitudes and hue, in figures.
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
