"""Crops, flips, rotation, erasing and lighting. Oracles: torch's functions, by which torchvision computes them."""

import math

import numpy as np
import pytest

from dsinga.addons.augmentation.augmentation import pick
from dsinga.addons.augmentation.images import EIGENVALUES, EIGENVECTORS, normal, rotations
from dsinga.addons.augmentation.resampling import Boxes, resize, transform_bilinear
from dsinga.base.errors import UserError
from tests.support.augmentations import draws, images, make_list, make_one


def test_random_crop_is_a_window_of_the_padded_image():
    x = images()
    crop = make_one(x, type="kRandomCrop", size=[12, 15], pad=3)
    uniform = draws(crop, len(x))
    padded = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    tops, lefts = (uniform * [16 + 6 - 12 + 1, 20 + 6 - 15 + 1]).astype(int).T
    expected = [
        padded[i, :, top : top + 12, left : left + 15] for i, (top, left) in enumerate(zip(tops, lefts, strict=True))
    ]
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


def test_erasing_half_the_side_is_a_square():
    x = np.full((50, 3, 32, 32), 7, np.uint8)
    erasing = make_one(x, type="kRandomErasing", probability=1.0, scale=[0.25, 0.25], ratio=[1, 1])
    assert ((erasing.augment(x, draws(erasing, 50)) == 0).sum(axis=(1, 2, 3)) == 3 * 256).all()


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
        ({"type": "kColorJitter"}, (4, 8, 8), "u1", "takes images of 1 or 3 channels, not of 4"),
        ({"type": "kLighting"}, (1, 8, 8), "u1", "takes images of 3 channels, not of 1"),
    ],
)
def test_records_that_do_not_fit_are_refused(message, shape, dtype, text):
    with pytest.raises(UserError, match=f"layer 'data': {message['type']} {text}"):
        make_list(np.zeros((1, *shape), dtype), message)
