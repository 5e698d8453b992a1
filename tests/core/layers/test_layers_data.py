"""Input and preprocessing layers: records, images, labels, random numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsinga.job import Phase
from dsinga.layers import RecordInfo, Records, Rows
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context, layer_of

OPS = BACKENDS["numpy"]()
TRAIN, TEST = context(OPS), context(OPS, Phase.kTest)


# SINGA's CSV test: label, then three numbers.
CSV = np.array([[3.2, 1, 14.1], [0.2, 0, 1.1], [2.2, 1, 4.1]], np.float32)
CSV_LABELS = np.array([12, 2, 1])


def test_rows_of_a_csv_file_are_read_unchanged_with_their_labels():
    layer = layer_of("kCSVInput", info=RecordInfo((3,), 2))
    output = layer.compute_feature([], [Records(CSV[:2], CSV_LABELS[:2])], TRAIN)
    assert layer.shape == (2, 3)
    assert np.array_equal(output.feature, CSV[:2])
    assert output.labels.tolist() == [12, 2]


def test_pixels_are_normalised_by_scalars():
    layer = layer_of("kRecordInput", info=RecordInfo((4,), 1), store_conf={"mean_value": 127.5, "std_value": 127.5})
    feature = layer.compute_feature([], [Records(np.array([[0, 51, 204, 255]], np.uint8))], TRAIN).feature
    assert feature.dtype == np.float32
    np.testing.assert_allclose(feature, [[-1, -0.6, 0.6, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "store"), [((2, 2, 2), {}), ((8,), {"shape": [2, 2, 2]}), ((2, 2, 2), {"shape": [8]})]
)
def test_the_mean_of_a_file_overrides_a_scalar_in_any_shape(shape: tuple[int, ...], store: dict[str, Any]):
    mean = np.arange(8.0)
    info = RecordInfo(shape, 3, mean=mean.reshape(2, 4), std=np.full(8, 2.0))
    layer = layer_of("kRecordInput", info=info, store_conf={"mean_value": 99, "std_value": 99, **store})
    data = np.arange(24, dtype=np.uint8).reshape(3, *shape)
    feature = layer.compute_feature([], [Records(data)], TRAIN).feature
    assert feature.shape == layer.shape == (3, *store.get("shape", shape))
    np.testing.assert_allclose(feature.reshape(3, 8), (data.reshape(3, 8) - mean) / 2)


def test_a_mean_for_each_channel_broadcasts():
    layer = layer_of("kRecordInput", info=RecordInfo((2, 2, 2), 1, mean=np.array([1.0, 5.0]).reshape(2, 1, 1)))
    feature = layer.compute_feature([], [Records(np.full((1, 2, 2, 2), 5, np.uint8))], TRAIN).feature
    assert feature[0].reshape(2, 4).tolist() == [[4] * 4, [0] * 4]


# A pixel is 100·row + column + 10000·channel, so that its value tells its position.
SIDES = np.add.outer(100 * np.arange(8), np.arange(10))
IMAGES = np.broadcast_to(SIDES + 10000 * np.arange(3)[:, None, None], (400, 3, 8, 10)).astype(np.float32)


def test_padding_adds_zeros_and_keeps_the_centre():
    settings = {"pad": 2, "cropsize": 6}
    layer = layer_of("kRGBImage", (5, 3, 6, 6), rgbimage_conf=settings)
    x = np.random.default_rng(0).integers(1, 256, (5, 3, 6, 6)).astype(np.float32)
    assert np.array_equal(layer.compute_feature([], [x], TEST).feature, x)
    crops = layer.compute_feature([], [x], TRAIN).feature
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    for crop, image in zip(crops, padded, strict=True):
        assert any(np.array_equal(crop, image[:, i : i + 6, j : j + 6]) for i in range(5) for j in range(5))


def test_images_are_cut_from_the_centre_outside_training():
    layer = layer_of("kImagePreprocess", IMAGES.shape, rgbimage_conf={"cropsize": 5, "mirror": True})
    feature = layer.compute_feature([], [IMAGES], TEST).feature
    assert np.array_equal(feature, IMAGES[:, :, 1:6, 2:7])


@pytest.mark.parametrize("mirror", [False, True])
def test_images_are_cut_and_mirrored_at_random_in_training(mirror: bool):
    layer = layer_of("kImagePreprocess", IMAGES.shape, rgbimage_conf={"cropsize": 5, "mirror": mirror})
    feature = layer.compute_feature([], [IMAGES], replace(TRAIN, rows=Rows(0, 400, 400))).feature
    seen = set()
    for image in feature:
        step = int(image[0, 0, 1] - image[0, 0, 0])
        top, left = divmod(int(image[0, 0].min()), 100)
        assert np.array_equal(image, IMAGES[0][:, top : top + 5, left : left + 5][..., ::step])
        seen.add((top, left, step))
    # Offsets 0 to 3 by 0 to 5, mirrored or not: 48 (or 24) crops, each of which occurs among 400.
    assert len(seen) >= (46 if mirror else 24)
    assert {step for _, _, step in seen} == ({1, -1} if mirror else {1})


def test_images_keep_their_layout_and_change_with_the_step():
    images = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    layer = layer_of("kRGBImage", IMAGES.shape, rgbimage_conf={"cropsize": 5})
    first, second = (
        layer.compute_feature([], [images], replace(TRAIN, rows=Rows(0, 400, 400), step=step)).feature
        for step in (1, 2)
    )
    assert first.transpose(0, 2, 3, 1).flags.c_contiguous
    assert not np.array_equal(first, second)


def test_a_mean_is_subtracted_before_cutting_and_scaling():
    layer = layer_of(
        "kRGBImage",
        (2, 3, 8, 10),
        info=RecordInfo((3, 8, 10), 2, mean=IMAGES[0]),
        rgbimage_conf={"cropsize": 4, "scale": 0.5, "meanfile": "mean.bin"},
    )
    for ctx in (TRAIN, TEST):
        feature = layer.compute_feature([], [IMAGES[:2] + 3], replace(ctx, rows=Rows(0, 2, 2))).feature
        assert np.array_equal(feature, np.full((2, 3, 4, 4), 1.5))


def test_mnist_pixels_are_divided_then_shifted():
    layer = layer_of("kMnist", (1, 3), mnist_conf={"norm_a": 127.5, "norm_b": 1})
    feature = layer.compute_feature([], [np.array([[0, 127.5, 255]], np.float32)], TRAIN).feature
    np.testing.assert_allclose(feature, [[-1, 0, 1]], atol=1e-6)


def test_missing_labels_are_refused():
    for kind in ("kLabel", "kSoftmaxLoss"):
        shapes = [(3, 4)] * (1 if kind == "kLabel" else 2)
        sources = [None] if kind == "kLabel" else [np.zeros((3, 4), np.float32), None]
        layer = layer_of(kind, *shapes)
        with pytest.raises(ValueError, match=f"layer 'layer': 'source{len(shapes) - 1}' has no labels"):
            layer.compute_feature([], sources, TRAIN)


def test_a_dummy_output_takes_no_part_in_the_gradient():
    assert layer_of("kDummy", (2, 3), dummy_conf={"output": True}).is_output
    assert not layer_of("kDummy", (2, 3)).is_output
