"""Runs whose schedule ends early, or whose batch statistics are of one number, say so; others say nothing."""

import logging

import numpy as np
import pytest

from dsinga import nn
from dsinga.api import with_workers
from dsinga.loop.initial_state import warn_of_unused_steps
from tests.support.training_cases import build, layer

X = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(autouse=True)
def warnings_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")  # Dask may have set the root's level higher


def model(rate: object, *layers: object) -> nn.Sequential:
    made = nn.Sequential([nn.Input(4), *layers, nn.Dense(2)])
    made.compile(nn.SGD(rate), "sparse_categorical_crossentropy")
    return made


@pytest.mark.parametrize(
    ("rate", "sentence"),
    [
        (nn.OneCycle(0.1, 25), "near 0 (4e-07) from step 24 on, of 100: its schedule is shorter than the run; give"),
        (nn.CosineDecay(0.1, 50), "near 0 (0) from step 50 on, of 100"),
        (nn.PolynomialDecay(0.1, 60, end_learning_rate=0.0), "near 0 (0) from step 60 on, of 100"),
        (nn.CosineDecay(0.1, 100), ""),
        (nn.CosineDecay(0.1, 50, alpha=0.1), ""),
        (nn.CosineDecayRestarts(0.1, 10), ""),
        (nn.ExponentialDecay(0.1, 2, 0.5), ""),
        (nn.PolynomialDecay(0.1, 100, end_learning_rate=0.0, power=4.0), ""),
        (0.1, ""),
        (0.0, ""),
    ],
)
def test_a_schedule_that_is_shorter_than_the_run(rate, sentence, caplog):
    model(rate).fit(X, Y, batch_size=10, epochs=10, progress=False)
    assert sentence in caplog.text
    assert bool(sentence) == bool(caplog.text)


def test_a_second_fit_goes_on_after_the_end_of_its_schedule(caplog):
    made = model(nn.OneCycle(0.1, 50))
    made.fit(X, Y, batch_size=10, epochs=5, progress=False)
    assert not caplog.text
    made.fit(X, Y, batch_size=10, epochs=5, progress=False)
    assert "in all steps, of 50: its schedule is shorter than the run, of which 50 steps are those of" in caplog.text


@pytest.mark.parametrize(
    ("rows", "workers", "synchronized", "fields"),
    [
        *((1, 1, True, {}), (2, 1, False, {}), (2, 2, True, {}), (2, 2, False, {}), (2, 1, False, {"blocks": 2})),
        (2, 1, False, {"micro_batches": 2}),  # parts of two rows
    ],
)
def test_batch_normalisation_over_one_row(rows, workers, synchronized, fields, caplog):
    norm = layer("norm", "kBM", "data", bm_conf={"synchronized": synchronized})
    net = build(norm, layer("loss", "kSoftmaxLoss", "norm", "data"), shape=(4,), rows=rows)
    job = model(0.1).job(X, Y, batch_size=rows, train_steps=3, **fields)
    warn_of_unused_steps(with_workers(job, workers), net, 0)
    is_one = rows == 1 or ((workers == 2 or "blocks" in fields) and not synchronized)
    assert ("layer 'norm' normalises each channel over the one number" in caplog.text) == is_one
