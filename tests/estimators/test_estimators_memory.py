"""Micro-batches and recomputation in models of dsinga.nn, and in estimators."""

from typing import Any

import numpy as np
import pytest

from dsinga import UserError, estimators, nn
from tests.support.small_job import assert_close, assert_same


def model(**conv: Any) -> nn.Sequential:
    layers = [
        nn.Input((1, 8, 8)), nn.Conv2D(4, 3, activation="relu", **conv), nn.Dropout(0.3), nn.Dense(3),
    ]  # fmt: skip
    net = nn.Sequential(layers)
    net.compile(nn.SGD(0.05), "sparse_categorical_crossentropy")
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(48, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 48)


def test_fit_takes_micro_batches() -> None:
    whole, parts = model(), model()
    whole.fit(*data(), batch_size=12, progress=False)
    parts.fit(*data(), batch_size=12, micro_batches=4, progress=False)
    assert_close(parts.params, whole.params, 1e-6)
    with pytest.raises(UserError, match="a batchsize of 12 cannot be divided into 5 equal micro_batches"):
        model().fit(*data(), batch_size=12, micro_batches=5, progress=False)


def test_every_layer_takes_recompute() -> None:
    kept, again = model(), model(recompute=True)
    kept.fit(*data(), batch_size=12, progress=False)
    again.fit(*data(), batch_size=12, progress=False)
    assert_same(again.params, kept.params)
    marked = [layer.name for layer in again.job(train_steps=1).neuralnet.layer if layer.recompute]
    assert marked == ["conv2d", "conv2d_relu"]  # the activation, too


def test_an_estimator_takes_the_micro_batches_of_its_job() -> None:
    x, y = data()
    jobs = [model().job(epochs=2, batch_size=12, micro_batches=count) for count in (1, 3)]
    whole, parts = (estimators.Classifier(job, random_state=0).fit(x, y) for job in jobs)
    assert_close(parts.params_, whole.params_, 1e-6)
