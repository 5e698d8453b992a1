"""Translators cut by rows and by features, for two and four workers, have the gradients of the uncut nets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsinga import models
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job

SMALL = {"batchsize": 8, "dropout": 0.2}
JOBS = {
    "gru": models.gru_translator(20, 15, embedding=8, hidden=8, **SMALL),
    "transformer": models.transformer(20, 15, width=8, heads=4, hidden=8, blocks=1, **SMALL),
}


def batch() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return sentences of different lengths, and the next words."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(3, 15, (8, 6)).astype(np.int32), rng.integers(3, 15, (8, 7)).astype(np.int32)
    labels = rng.integers(3, 15, (8, 7))
    for row, length in enumerate(rng.integers(2, 6, 8)):
        source[row, length:], target[row, length + 1 :], labels[row, length + 1 :] = -1, -1, -1
    return {"source": source, "target": target}, {"target": labels}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_translator_that_is_cut_has_the_gradients_of_the_whole(job: Job, dimension: int, workers: int):
    x, y = batch()
    job = job.replace(net=job.net.replace(partition_dim=dimension))
    whole = LocalNet(job, x, y, workers=1)
    params = whole.initial_params()
    expected = whole.backward(params, x, y, step=0)
    found = LocalNet(job, x, y, workers=workers).backward(params, x, y, step=0)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for name, gradient in expected.gradients.items():
        np.testing.assert_allclose(_dense(found.gradients[name]), _dense(gradient), rtol=0, atol=2e-6, err_msg=name)


def _dense(gradient: Any) -> np.ndarray:
    return gradient if isinstance(gradient, np.ndarray) else gradient.dense()
