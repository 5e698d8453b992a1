"""Images with their channels last, by one word: labels and outputs have them last, all else is as channels first."""

from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from dsinga import nn
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(24, 8, 8, 3)).astype(np.float32)
TARGETS = RNG.normal(size=(24, 8, 8, 2)).astype(np.float32)


def first(images: np.ndarray) -> np.ndarray:
    return np.moveaxis(images, -1, 1)


def unet(x, axis: int) -> nn.Model:
    """Return a net of images to images, with a connection that skips layers."""
    near = nn.Conv2D(4, 3, padding="same", activation="relu")(x)
    far = nn.UpSampling2D(2)(nn.Conv2D(4, 3, padding="same")(nn.MaxPooling2D(2)(near)))
    made = nn.Model(x, nn.Conv2D(2, 1)(nn.Concatenate(axis)([near, far])))
    made.compile(nn.Adam(0.01), "mse", metrics=["mae"])
    return made


def test_a_net_of_images_to_images_is_that_of_channels_first(tmp_path: Path):
    expected = unet(nn.Input((3, 8, 8)), 1)
    expected.fit(first(IMAGES), first(TARGETS), epochs=2, progress=False)
    made = unet(nn.Input((8, 8, 3), data_format="channels_last"), -1)
    made.fit(IMAGES, TARGETS, epochs=2, progress=False)
    assert_same(made.params, expected.params)
    made.save(tmp_path)
    loaded = nn.load_model(tmp_path)
    for each in (made, loaded):
        np.testing.assert_array_equal(each.predict(IMAGES), np.moveaxis(expected.predict(first(IMAGES)), 1, -1))
        np.testing.assert_array_equal(each(IMAGES[:2]), each.predict_on_batch(IMAGES[:2]))
        found = each.evaluate(IMAGES, TARGETS, return_dict=True)
        assert found == expected.evaluate(first(IMAGES), first(TARGETS), return_dict=True)
        assert each.evaluate(IMAGES, da.from_array(TARGETS)) == pytest.approx(each.evaluate(IMAGES, TARGETS), rel=1e-6)
    assert made.train_on_batch(IMAGES, TARGETS) == expected.train_on_batch(first(IMAGES), first(TARGETS))


def test_the_shape_of_images_may_come_from_the_records():
    said, unsaid = (nn.Sequential([nn.Input(shape, data_format="channels_last"), nn.Conv2D(2, 3, padding="same")])
                    for shape in ((8, 8, 3), None))  # fmt: skip
    for made in (said, unsaid):
        made.compile("sgd", "mse")
        made.fit(IMAGES, TARGETS, progress=False)
    assert_same(said.params, unsaid.params)
    refused(lambda: said.predict(IMAGES[:, :3]), "3, 8, 3", "8, 8, 3")


def test_one_word_is_for_all_inputs_of_images(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dsinga.nn.words.inputs._data_format", ["channels_first"])
    nn.config.set_image_data_format("channels_last")
    assert nn.config.image_data_format() == "channels_last"
    x = nn.Input((8, 8, 3))
    assert nn.Conv2D(4, 3)(x).shape == (None, 4, 6, 6)  # inside, channels are first
    made = unet(x, -1)
    assert made.predict(IMAGES).shape == (24, 8, 8, 2)
    assert nn.Dense(2)(nn.Input((5,))).shape == (None, 2)
    assert nn.Conv2D(4, 3)(nn.Input((3, 8, 8), data_format="channels_first")).shape == (None, 4, 6, 6)
    refused(lambda: nn.set_image_data_format("last"), "data_format is .* not 'last'")


def test_shapes_of_reshape_and_axes_of_slices_are_those_of_the_records():
    x = nn.Input((4, 6, 2), data_format="channels_last")
    images = RNG.normal(size=(3, 4, 6, 2)).astype(np.float32)
    vectors = nn.Reshape((48,))(x)
    left, right = nn.Slice(2, axis=2)(x)
    made = nn.Model(x, [vectors, nn.Reshape((2, 6, 4))(vectors), left - right, nn.Concatenate()([x, x])])
    flat, again, halves, joined = made.predict(images)
    np.testing.assert_array_equal(flat, images.reshape(3, 48))
    np.testing.assert_array_equal(again, flat.reshape(3, 2, 6, 4))
    np.testing.assert_array_equal(halves, images[:, :, :3] - images[:, :, 3:])
    np.testing.assert_array_equal(joined, np.concatenate([images, images], axis=-1))


def test_pixels_become_steps_and_channels_are_normalised():
    x = nn.Input((4, 6, 2), data_format="channels_last")
    images = RNG.normal(size=(3, 4, 6, 2)).astype(np.float32)
    outputs = [nn.Reshape((24, 2))(x), nn.Permute((2, 1, 3))(x), nn.Permute((3, 1, 2))(x), nn.LayerNormalization()(x)]
    assert nn.BatchNormalization(axis=-1)(x).shape == nn.BatchNormalization(axis=3)(x).shape == x.shape
    outputs.append(nn.Reshape((6, 4, 2))(nn.Flatten()(x)))
    steps, turned, moved, normal, other = nn.Model(x, outputs).predict(images)
    np.testing.assert_array_equal(steps, images.reshape(3, 24, 2))
    np.testing.assert_array_equal(other, images.reshape(3, 6, 4, 2))
    np.testing.assert_array_equal(turned, images.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(moved, images.transpose(0, 3, 1, 2))
    expected = (images - images.mean(-1, keepdims=True)) / np.sqrt(images.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(normal, expected, rtol=1e-5, atol=1e-5)
    refused(lambda: nn.LayerNormalization((2, 3))(x), "axis=-1", r"axes \(2, 3\)")


def test_targets_whose_channels_are_last_are_refused():
    made = unet(nn.Input((3, 8, 8)), 1)
    refused(lambda: made.fit(first(IMAGES), TARGETS, progress=False), "'conv2d_2'", "channels are last")
    made = unet(nn.Input((8, 8, 3), data_format="channels_last"), -1)
    refused(lambda: made.fit(Pairs(), progress=False), "; give y as an array")


class Pairs:
    """Records by number with targets of their own, as a Dataset of PyTorch has them."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return IMAGES[number], TARGETS[number]
