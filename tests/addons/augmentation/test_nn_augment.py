"""nn.augment: functions that follow from the classes of augmentations, in models and estimators."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.addons.augmentation import create_augmentations
from dsinga.addons.augmentation.augmentation import Augmentation
from dsinga.base.errors import UserError
from dsinga.job import StoreConf
from dsinga.job.component import Settings, setting
from tests.core.nn.test_nn_further_habits import habits_of, run_habit
from tests.support.refusals import refused
from tests.support.small_job import assert_same

X = np.random.default_rng(0).integers(0, 256, (60, 3, 10, 10), dtype=np.uint8)
Y = np.arange(60) % 3


def model(*augment):
    net = nn.Sequential(
        [
            nn.Input(augment=list(augment)),
            nn.Rescaling(1 / 255),
            nn.Conv2D(4, 3, activation="relu"),
            nn.Flatten(),
            nn.Dense(3),
        ]
    )
    net.compile("adam", "sparse_categorical_crossentropy")
    return net


def test_functions_are_those_of_the_classes():
    assert nn.augment.RandomCrop(24, pad=2) == dsinga.job.AugmentConf(type="kRandomCrop", size=[24], pad=2)
    assert nn.augment.RandomResizedCrop((8, 9), scale=(0.5, 1)).scale == [0.5, 1.0]
    assert "how many pixels of zeros" in nn.augment.RandomCrop.__doc__
    for wrong, message in (
        (lambda: nn.augment.RandomCrop(pad=-1), "RandomCrop: pad must be in"),
        (lambda: nn.augment.RandAugment(magnitude=50), "RandAugment: magnitude is 50; give 0 to 30"),
        (lambda: nn.augment.RandomCrop(padd=1), "RandomCrop has no argument 'padd'; did you mean 'pad'"),
    ):
        with pytest.raises(UserError, match=message):
            wrong()
    refused(lambda: nn.RandomErasing(), "write nn.augment.RandomErasing", error=AttributeError)


def test_a_model_trains_on_crops_and_predicts_the_centre():
    net = model(nn.augment.RandomCrop(8), nn.augment.RandomFlip(), nn.augment.Mixup())
    history = net.fit(X, Y, epochs=2, validation_data=(X, Y), progress=False)
    assert {row["phase"] for row in history} == {"train", "val"}
    np.testing.assert_array_equal(net.predict(X[:4]), net.predict(X[:4, :, 1:9, 1:9]))
    assert "augment { type: kRandomCrop size: 8 }" in str(net.job(X, Y))


def test_a_model_with_a_known_shape_knows_that_after_the_crop():
    x = nn.Input((3, 10, 10), augment=[nn.augment.RandomCrop((8, 6))])
    net = nn.Model(x, nn.Dense(2)(nn.Flatten()(x)))
    net.compile("sgd", "sparse_categorical_crossentropy")
    net.fit(X, Y % 2, train_steps=1, progress=False)
    assert {value.shape for value in net.result.params.values()} == {(2,), (2, 3 * 8 * 6)}


def test_a_users_own_augmentation_is_a_function_too():
    @dsinga.register("augmentation", "Invert")
    class Invert(Augmentation):
        """Invert some images."""

        class Conf(Settings):
            """Settings of Invert."""

            share: float = setting(0.5, "the probability that an image is inverted")

        draws = 1

        def augment(self, records, uniform):
            """Return images, some of them inverted."""
            chosen = uniform[:, 0] < self.settings.share
            records[chosen] = 255 - records[chosen]
            return records

    try:
        conf = nn.augment.Invert(share=1.0)
        assert (conf.user_type, conf.share) == ("Invert", 1.0)
        everywhere = model(conf).fit(X, Y, train_steps=3, seed=1, progress=False)
        expected = model().fit(255 - X, Y, train_steps=3, seed=1, progress=False)
        assert everywhere[-1]["loss"] == expected[-1]["loss"]
    finally:
        dsinga.base.registry.unregister("augmentation", "Invert")


def test_images_with_channels_last_are_changed_as_those_with_channels_first():
    augment = [nn.augment.RandomCrop((8, 6), pad=1), nn.augment.RandomFlip(), nn.augment.ColorJitter(hue=0.2)]
    layers = [nn.Rescaling(1 / 255), nn.Conv2D(4, 3), nn.Flatten(), nn.Dense(3)]
    first = nn.Sequential([nn.Input((3, 10, 10), augment=augment), *layers])
    last = nn.Sequential([nn.Input((10, 10, 3), data_format="channels_last", augment=augment), *layers])
    unsaid, turned = nn.Sequential([nn.Input(augment=augment), *layers]), np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    for net, records in ((first, X), (last, turned), (unsaid, turned)):
        net.compile("sgd", "sparse_categorical_crossentropy")
        net.fit(records, Y, epochs=2, progress=False)
    assert_same(last.params, first.params)
    assert_same(unsaid.params, first.params)
    np.testing.assert_array_equal(last.predict(X[:4].transpose(0, 2, 3, 1)), first.predict(X[:4]))
    np.testing.assert_array_equal(last.predict(X[:4, :, 1:9, 2:8].transpose(0, 2, 3, 1)), first.predict(X[:4]))
    other = nn.Sequential([nn.Input((10, 10, 3), data_format="channels_last"), *layers])
    other.compile("sgd", "sparse_categorical_crossentropy")
    refused(lambda: other.fit(X, Y, progress=False), r"the shape \(3, 10, 10\); leave data_format out, or give x.tra")


class Broken(Augmentation):
    """Return the first row of each image."""

    def augment(self, records, uniform):
        return records[:, :, 0]


class Silent(Augmentation):
    """Forgets to return the records."""

    def augment(self, records, uniform):
        records //= 2


class Empty(Augmentation):
    """Defines nothing."""


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Broken, r"layer 'data': Own returned the shape \(32, 3, 10\) for 32 records of the shape \(3, 10, 10\)"),
        (Silent, "layer 'data': Own returned NoneType for 32 records"),
        (Empty, r"Empty defines no augment\(self, records, uniform\)"),
    ],
)
def test_what_an_augmentation_of_a_users_returns_is_checked(cls: type[Augmentation], text: str):
    dsinga.register("augmentation", "Own")(cls)
    try:
        refused(lambda: model(nn.augment.Own()).fit(X, Y, progress=False), text)
    finally:
        dsinga.base.registry.unregister("augmentation", "Own")


@pytest.mark.skipif(not find_spec("keras"), reason="needs Keras")
@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(0.25, 0.0), (0.13, -0.31), (0.3, 0.2)])
def test_images_are_moved_as_in_keras(height: float, width: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    x = np.random.default_rng(0).random((2, 9, 12, 3)).astype(np.float32)
    layer = keras.layers.RandomTranslation((height, height), (width, width), data_format="channels_last")
    conf = StoreConf(augment=[nn.augment.RandomTranslation(height=abs(height), width=abs(width))])
    chain = create_augmentations("data", conf, (3, 9, 12), np.dtype(np.float32), seed=0, training=True)
    ends = np.array([[float(height > 0), float(width > 0)]] * 2)
    moved = chain._augmentations[0].augment(np.moveaxis(x, -1, 1).copy(), ends)
    np.testing.assert_allclose(np.moveaxis(moved, 1, -1), np.asarray(layer(x, training=True)), atol=1e-6)


def test_metrics_of_classes_leave_mixed_labels_out():
    measures = pytest.importorskip("sklearn.metrics")
    rows = X[:, 0, 0, :5] / np.float32(255)
    x = nn.Input((1, 1, 5), augment=[nn.augment.Mixup()])
    made = nn.Model(x, nn.Dense(3)(nn.Flatten()(x)))
    made.compile("adam", "sparse_categorical_crossentropy", metrics=["macro_f1", "roc_auc", "top_2_accuracy"])
    history = made.fit(rows, Y, epochs=2, validation_data=(rows, Y), progress=False)
    assert "macro_f1" not in history.phase("train")[-1]
    assert history.phase("val")[-1, "macro_f1"] == pytest.approx(
        measures.f1_score(Y, made.predict(rows).argmax(axis=1), average="macro")
    )


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: nn.Sequential([nn.Input((3, 9, 8)), nn.Conv2D(2, 3), nn.RandomRotation(0.1)]).job(),
            "is done where records are read: put it after",
        ),
        (lambda: nn.Input(augment=[nn.augment.RandomFlip]), r"not of RandomFlip; call it: nn.augment.RandomFlip\(\)"),
    ],
)
def test_what_is_refused(ask: Callable[[], object], message: str):
    refused(ask, message)


@pytest.mark.parametrize("habit", habits_of("augmentation"))
def test_a_habit_of_keras_works_as_written(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_habit(habit, tmp_path, monkeypatch)
