"""Whatever trains can be saved, loaded, counted and summed up: every metric and every loss."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.convert import load_weights, save_weights
from dsinga.estimators import Classifier
from dsinga.estimators import load as load_estimator
from dsinga.nn.words.losses import losses_by_name
from dsinga.nn.words.metrics import TYPES
from tests.support.refusals import refused
from tests.support.registries import restored_registry

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype(np.float32)
STEPS = RNG.normal(size=(12, 7, 6)).astype(np.float32)
IMAGES = RNG.normal(size=(12, 1, 5, 4)).astype(np.float32)
CLASSES, ANSWERS = np.arange(12) % 3, np.arange(12) % 2
NUMBERS, POINTS = X[:, :3] ** 2, np.arange(12 * 20).reshape(12, 5, 4) % 3
WORDS = np.arange(12 * 7).reshape(12, 7) % 3


def gap(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.abs(labels - predictions).max())


def difference(labels: Any, predictions: Any) -> Any:
    return ((labels - predictions) ** 2).mean()


# By kind: the layers after the input, records, and the forms of their labels.
dense, sigmoid = (lambda: [nn.Dense(3)]), (lambda: [nn.Dense(1, activation="sigmoid")])
scores_of_steps = lambda: [nn.GRU(4, return_sequences=True), nn.Dense(3)]  # noqa: E731
channels = lambda: [nn.Conv2D(3, 3, padding="same")]  # noqa: E731
KINDS: dict[str, tuple[Callable[[], list[Any]], np.ndarray, list[np.ndarray]]] = {
    "classes": (dense, X, [CLASSES]),
    "distributions": (dense, X, [np.eye(3, dtype=np.float32)[CLASSES]]),
    "column of classes": (dense, X, [CLASSES[:, None]]),
    "answer": (sigmoid, X, [ANSWERS, ANSWERS[:, None].astype(np.float32)]),
    "answers": (dense, X, [np.stack([ANSWERS] * 3, axis=1).astype(np.float32)]),
    "numbers": (dense, X, [NUMBERS]),
    "number": (lambda: [nn.Dense(1)], X, [X[:, 0], X[:, :1]]),
    "three for each": (lambda: [nn.Dense(9)], X, [NUMBERS]),
    "two for each": (lambda: [nn.Dense(6), nn.DistributionParams("normal")], X, [NUMBERS]),
    "steps": (scores_of_steps, STEPS, [WORDS]),
    "texts": (scores_of_steps, STEPS, [WORDS[:, :2] % 2 + 1]),
    "numbers of steps": (scores_of_steps, STEPS, [STEPS[..., :3]]),
    "features of steps": (lambda: [nn.GRU(4, return_sequences=True)], STEPS, [WORDS]),
    "points": (channels, IMAGES, [POINTS]),
    "fields": (channels, IMAGES, [np.repeat(IMAGES, 3, axis=1)]),
}
FIELD_ERROR = nn.FieldError(channel=["a", "b", "c"])
SCORES, LISTS = (
    ["macro_f1", "macro_precision", "macro_recall", "mcc"],
    ["f1_by_class", "precision_by_class", "recall_by_class"],
)
OF_CLASSES = ["accuracy", "top_2_accuracy", "roc_auc", "average_precision", "confusion", "perplexity", *SCORES, *LISTS]
OF_ANSWERS = ["accuracy", "roc_auc", "average_precision", "precision", "recall", "f1", "confusion", gap]
SURE = ["brier", "calibration_error", "reliability"]
OF_POINTS = ["mean_iou", "dice", "pixel_accuracy", "iou_by_class", "dice_by_class", *SURE]
OF_NUMBERS, OF_FIELDS = ["rmse", "mae", "r2", gap], ["rmse", "mae", "bias"]
OF_FORECASTS = ["crps", "coverage", "spread", "spread_skill", "rank_histogram"]
# The losses of each kind, and the metrics.
SAVED: list[tuple[str, list[Any], list[Any]]] = [
    ("classes", ["sparse_categorical_crossentropy", "softmax", nn.SoftmaxLoss(topk=2)], OF_CLASSES),
    ("column of classes", ["sparse_categorical_crossentropy", "hinge"], SCORES),
    ("classes", ["hinge"], [*SCORES, "accuracy"]),
    ("distributions", ["categorical_crossentropy"], ["accuracy", "roc_auc", "macro_f1"]),
    ("distributions", ["kl_divergence", "kld"], OF_NUMBERS),
    ("answer", ["binary_crossentropy", "focal"], [*OF_ANSWERS, *SURE]),
    ("answers", ["binary_crossentropy", nn.FocalLoss(gamma=1)], ["accuracy", "roc_auc", *SURE]),
    ("numbers", ["mse", "mean_squared_error", "mae", "mean_absolute_error", "huber", "euclidean"], OF_NUMBERS),
    ("numbers", ["cosine_similarity", nn.CosineLoss(), nn.HuberLoss(delta=0.5), difference], OF_NUMBERS),
    ("number", ["mse", "mae", "huber", nn.EuclideanLoss()], OF_NUMBERS),
    ("three for each", ["quantile", nn.QuantileLoss([0.1, 0.5, 0.9]), nn.EnsembleLoss(3)], OF_FORECASTS),
    ("two for each", ["distribution", nn.DistributionLoss("normal")], OF_FORECASTS),
    ("steps", ["sparse_categorical_crossentropy"], [*SCORES, "perplexity", "top_2_accuracy"]),
    ("steps", ["crf"], []),
    ("texts", ["ctc"], ["accuracy"]),
    ("numbers of steps", ["mse", "mae"], ["rmse", "mae", "r2"]),
    ("features of steps", [nn.ClassSoftmaxLoss(3, [0, 1]), nn.SampledLoss(3, num_samples=2)], []),
    ("points", ["sparse_categorical_crossentropy", "dice"], OF_POINTS),
    ("fields", ["mse", "mae", "huber"], OF_FIELDS),
    ("fields", ["mse"], [FIELD_ERROR]),
]  # fmt: skip


def cases() -> Iterator[Any]:
    for kind, losses, metrics in SAVED:
        yield pytest.param(kind, losses[0], metrics)
        for loss in losses[1:]:
            yield pytest.param(kind, loss, metrics, marks=pytest.mark.ci)
        for metric in metrics if len(metrics) > 1 else ():
            yield pytest.param(kind, losses[0], [metric], marks=pytest.mark.ci)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    with restored_registry():
        yield


def test_all_metrics_and_losses_are_among_the_cases():
    metrics = {name for _, _, listed in SAVED for name in listed if isinstance(name, str)}
    assert metrics == {*TYPES, "accuracy", "roc_auc", "average_precision", "top_2_accuracy"}
    losses = {name for _, listed, _ in SAVED for name in listed if isinstance(name, str)}
    assert losses == losses_by_name().keys() - {"ensemble"}  # which needs the number of members


def model(kind: str, loss: Any, metrics: list[Any]) -> nn.Sequential:
    layers, x, _ = KINDS[kind]
    made = nn.Sequential([nn.Input(x.shape[1:]), *layers()])
    made.compile(nn.Adam(0.01), loss, metrics=metrics)
    return made


def check(made: Any, x: np.ndarray, count: int, folder: Path) -> None:
    """Do all that one does with params, and compare."""
    before = made.predict(x)
    weights = made.get_weights()
    assert made.count_params() == sum(array.size for array in weights) == count
    made.summary()
    assert "layer {" in str(made)
    made.set_weights([np.zeros_like(array) for array in weights])
    made.save_weights(folder / "zeros.safetensors")
    made.set_weights(weights)
    made.save_weights(folder / "weights.safetensors")
    made.load_weights(folder / "zeros.safetensors")
    assert not any(map(np.any, made.get_weights()))
    made.load_weights(folder / "weights.safetensors")
    np.testing.assert_array_equal(made.predict(x), before)


@pytest.mark.parametrize(("kind", "loss", "metrics"), [*cases()])
def test_what_trains_is_saved_loaded_and_counted(kind: str, loss: Any, metrics: list[Any], tmp_path: Path, capsys: Any):
    _, x, labels = KINDS[kind]
    for y in labels:
        made = model(kind, loss, metrics)
        count = made.count_params()
        check(made, x, count, tmp_path)
        saver = nn.callbacks.ModelCheckpoint(tmp_path / "best")
        made.fit(x, y, batch_size=12, epochs=1, callbacks=[saver], progress=False)
        check(made, x, count, tmp_path)
        made.save(tmp_path / "saved")
        for folder in ("best", "saved"):
            loaded = nn.load_model(tmp_path / folder)
            np.testing.assert_array_equal(loaded.predict(x), made.predict(x))
            loaded.save(tmp_path / folder)
            assert loaded.evaluate(x, y)["loss"] == made.evaluate(x, y)["loss"]
        check(loaded, x, count, tmp_path)


def trained(classes: int = 3, epochs: int = 1) -> nn.Sequential:
    made = nn.Sequential([nn.Input(6), nn.Dense(classes)])
    made.compile("adam", "sparse_categorical_crossentropy")
    made.fit(X, CLASSES, epochs=epochs, progress=False)
    return made


@pytest.mark.parametrize("name", ["job.conf", "params.safetensors", "optimizer.safetensors", "names.json"])
def test_files_of_two_saves_are_refused(name: str, tmp_path: Path):
    for folder, epochs in (("first", 1), ("second", 2)):
        made = trained()
        made.fit(pd.DataFrame(X, columns=[*"abcdef"]), CLASSES, epochs=epochs, progress=False)
        made.save(tmp_path / folder)
    shutil.copy(tmp_path / "second" / name, tmp_path / "first" / name)
    refused(lambda: nn.load_model(tmp_path / "first"), r"was saved with params of .* they are of two saves, or damaged")
    estimator = [Classifier(hidden=(), epochs=epochs, random_state=0).fit(X, CLASSES) for epochs in (1, 2)]
    for number, fitted in enumerate(estimator):
        fitted.save(tmp_path / str(number))
    if name in ("job.conf", "params.safetensors"):
        shutil.copy(tmp_path / "1" / name, tmp_path / "0" / name)
        refused(lambda: load_estimator(tmp_path / "0"), "they are of two saves")


def test_a_folder_of_before_is_read_and_one_whose_job_was_changed(tmp_path: Path):
    made = trained()
    made.save(tmp_path)
    first, _, job = (tmp_path / "job.conf").read_text().partition("\n")
    assert first.startswith("# saved with params of ")
    for text in (job, f"{first}\n{job.replace('epochs: 1', 'epochs: 2')}"):
        (tmp_path / "job.conf").write_text(text)
        np.testing.assert_array_equal(nn.load_model(tmp_path).predict(X), made.predict(X))


def test_an_older_model_is_replaced_whole_and_other_files_stay(tmp_path: Path):
    trained().save(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    made = trained(4)
    made.compile("sgd", "sparse_categorical_crossentropy")  # nothing is known of another optimizer
    made.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "job.conf", "params.safetensors"]
    np.testing.assert_array_equal(nn.load_model(tmp_path).predict(X), made.predict(X))
    save_weights(made, tmp_path, config={"hidden": 4})
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"dense.weight": "older.safetensors"}}')
    save_weights(made, tmp_path)  # else the index would be read
    assert (tmp_path / "config.json").exists()
    load_weights(made, tmp_path)


def test_urls_are_no_folders():
    made = trained()
    for use in (made.save, made.save_weights, nn.load_model, lambda url: save_weights(made, url)):
        with pytest.raises(UserError, match="is a URL; save to and load from a local path"):
            use("s3://bucket/model")
