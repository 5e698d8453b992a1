"""A further fit goes on with the optimizer; saved models do, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.extensions.keras_callbacks import LambdaCallback
from dsinga.nn.model import params_on_disk
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=60)
X = (RNG.normal(size=(60, 4)) + 3 * Y[:, None] * np.array([1, -1, 1, 0])).astype(np.float32)
WHOLE: dict[str, Any] = {"batch_size": 60, "progress": False}  # an epoch is a step, of all records
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def blobs(optimizer: Any = None) -> nn.Sequential:
    model = nn.Sequential([nn.Input(4), nn.Dense(8, activation="tanh"), nn.Dense(3)])
    model.compile(optimizer or nn.Adam(nn.ExponentialDecay(0.1, 2, 0.7)), "sparse_categorical_crossentropy")
    return model


def assert_near(model: nn.Sequential, other: nn.Sequential) -> None:
    for name, array in model.params.items():
        np.testing.assert_allclose(array, other.params[name], **CLOSE, err_msg=name)


def test_a_warm_up_may_end_before_a_further_fit():
    model, once = (blobs(nn.SGD(nn.CosineDecay(0.2, 9, warmup_steps=3))) for _ in range(2))
    for epochs in (3, 1, 2):  # the last two are shorter than the warm-up, which is over
        model.fit(X, Y, epochs=epochs, **WHOLE)
    once.fit(X, Y, epochs=6, **WHOLE)
    assert_near(model, once)
    with pytest.raises(UserError, match="warmup_steps: 3 is more than the 2 steps of the run"):
        blobs(nn.SGD(nn.CosineDecay(0.2, 9, warmup_steps=3))).fit(X, Y, epochs=2, **WHOLE)


TOPOLOGIES = {"features": {"workers": 2}, "two servers": {"workers": 2, "servers": 2}, "groups": {"server_groups": 1}}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_further_fit_on_a_cluster_is_that_in_this_process(name: str, threads: Any):
    model, here = blobs(), blobs()
    for epochs in (2, 3):
        here.fit(X, Y, epochs=epochs, **WHOLE)
        model.fit(X, Y, epochs=epochs, client=threads, cluster=nn.Cluster(**TOPOLOGIES[name]), **WHOLE)
    assert_near(model, here)


def test_compile_and_new_params_begin_the_optimizer_anew():
    first, params = blobs(), None
    first.fit(X, Y, epochs=3, **WHOLE)
    params = first.params
    anew = blobs()
    anew.params = params
    anew.fit(X, Y, epochs=2, seed=1, **WHOLE)
    compiled, given, kept = blobs(), blobs(), blobs()
    for model in (compiled, given, kept):
        model.fit(X, Y, epochs=3, **WHOLE)
    compiled.compile(nn.Adam(nn.ExponentialDecay(0.1, 2, 0.7)), "sparse_categorical_crossentropy")
    given.params = params
    for model in (compiled, given, kept):
        model.fit(X, Y, epochs=2, seed=1, **WHOLE)
    assert_same(compiled.params, anew.params)
    assert_same(given.params, anew.params)
    assert any((kept.params[name] != array).any() for name, array in anew.params.items())


@pytest.mark.parametrize("folder", [None, "missing"])  # to which large params are written, or else stay in memory
def test_a_large_model_goes_on_after_a_fit_that_failed(folder: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(params_on_disk, "LEAST_BYTES", 1)
    monkeypatch.setattr(params_on_disk.tempfile, "tempdir", folder)
    model, other = blobs(), blobs()
    for each in (model, other):
        each.fit(X, Y, epochs=3, **WHOLE)
    of_user = model.params
    weight = of_user["dense_weight"]
    with pytest.raises(ZeroDivisionError):
        model.fit(X, Y, callbacks=[LambdaCallback(on_epoch_begin=lambda epoch, logs: 1 / 0)], **WHOLE)
    assert (model.params["dense_weight"] is weight) == (folder is not None)
    assert_same(model.params, of_user)
    for each in (model, other):
        each.fit(X, Y, epochs=2, **WHOLE)
    assert_same(model.params, other.params)


def test_params_that_were_frozen_begin_with_no_state():
    model = blobs()
    model.layers[0].trainable = False
    model.fit(X, Y, epochs=2, **WHOLE)
    before = model.params["dense_weight"].copy()
    model.trainable = True
    model.fit(X, Y, epochs=2, **WHOLE)
    assert (model.params["dense_weight"] != before).any()


def test_an_optimizer_is_saved_once_it_has_a_state_and_refused_when_damaged(tmp_path: Path):
    model = blobs()
    model.save(tmp_path)
    assert not (tmp_path / "optimizer.safetensors").exists()
    model.fit(X, Y, epochs=1, **WHOLE)
    model.save(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"damaged")
    refused(lambda: nn.load_model(tmp_path), "optimizer.safetensors")


def with_metrics() -> nn.Model:
    model = blobs()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["roc_auc", "macro_f1", "top_2_accuracy"])
    return model


def with_two_outputs() -> nn.Model:
    x = nn.Input(4)
    model = nn.Model(x, [nn.Dense(3, name="kind")(x), nn.Dense(1, name="size")(x)])
    model.compile("adam", ["sparse_categorical_crossentropy", "huber"], metrics={"size": ["r2"]})
    return model


@pytest.mark.parametrize(
    ("make", "labels", "options"),
    [
        (with_metrics, Y, {}),
        (with_metrics, Y, {"class_weight": {1: 2.0}}),
        (with_metrics, Y, {"sample_weight": X[:, 0] ** 2}),
        (with_two_outputs, [Y, X[:, :1]], {}),
        (with_two_outputs, [Y, X[:, :1]], {"sample_weight": X[:, 0] ** 2}),
    ],
)
def test_a_loaded_model_predicts_tests_and_goes_on_as_the_saved_one(make, labels, options, tmp_path):
    model = make()
    model.fit(X, labels, epochs=2, **options, **WHOLE)
    model.save(tmp_path)
    loaded = nn.load_model(tmp_path)
    for ours, theirs in zip(model.predict(X), loaded.predict(X), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert dict(loaded.evaluate(X, labels)) == dict(model.evaluate(X, labels))
    for each in (model, loaded):
        each.fit(X, labels, epochs=2, seed=7, **options, **WHOLE)
    assert_same(loaded.params, model.params)
