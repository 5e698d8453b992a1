"""Nets of the models cut by rows and by features, for two and four workers, have the gradients of the uncut nets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job

RNG, ROWS = np.random.default_rng(0), 8
SMALL = {"batchsize": ROWS, "dropout": 0.2}
ONE_FEATURE = (
    "score",
    "scores",
    "similarity",
    "user_mean",
    "film_mean",
    "output",
)  # layers with too few features to cut
Batch = dict[str, np.ndarray]


def codes(count: int, steps: int, ended: np.ndarray | None = None) -> np.ndarray:
    """Return sentences below ``count``, -1 from the steps ``ended`` on, random ones if that is None."""
    ended = RNG.integers(2, steps, ROWS) if ended is None else ended
    return np.where(np.arange(steps) < ended[:, None], RNG.integers(count, size=(ROWS, steps)), -1).astype(np.int32)


def translated() -> tuple[Batch, Batch]:
    ended = RNG.integers(3, 7, ROWS)
    return {"source": codes(15, 6), "target": codes(15, 7, ended)}, {"target": codes(15, 7, ended).astype(int)}


def rated() -> tuple[Batch, Batch]:
    numbers = {name: RNG.integers(count, size=ROWS).astype(np.int32) for name, count in (("users", 12), ("films", 20))}
    genres = RNG.integers(2, size=(ROWS, 19)).astype(np.float32)
    return {**numbers, "titles": codes(30, 5), "genres": genres}, {"users": RNG.uniform(1, 5, ROWS).astype(np.float32)}


def resnet() -> Job:
    """Return the job of a residual net without the file of the mean image."""
    job = models.resnet(8, 4, size=8, batchsize=ROWS)
    layers = [
        conf.replace(store_conf=conf.store_conf.replace(mean_file=None)) if conf.store_conf else conf
        for conf in job.net.layer
    ]
    return job.replace(net=job.net.replace(layer=layers))


def trainable(model: nn.Model) -> Job:
    """Return the job of a net for fields of four channels with a target of one."""
    model.compile("sgd", "mse")
    return model.job(train_steps=1, batch_size=ROWS)


FIELDS = (
    {"data": RNG.normal(size=(ROWS, 4, 8, 8)).astype(np.float32)},
    {"data": RNG.normal(size=(ROWS, 64)).astype(np.float32)},
)
IMAGES = {"data": RNG.integers(256, size=(ROWS, 3, 8, 8)).astype(np.uint8)}, {"data": RNG.integers(4, size=ROWS)}
TABLE = {"data": np.concatenate([RNG.normal(size=(ROWS, 3)), RNG.integers(0, 4, (ROWS, 2))], axis=1).astype(np.float32)}
REVIEWS = {"data": codes(30, 9)}, {"data": RNG.integers(2, size=ROWS)}
# A job is made by the tests of it, not by every process that collects them.
CASES: dict[str, tuple[Callable[[], Job], tuple[Batch, Batch]]] = {
    "resnet": (resnet, IMAGES),
    "gru": (lambda: models.gru_translator(20, 15, embedding=8, hidden=8, **SMALL), translated()),
    "transformer": (lambda: models.transformer(20, 15, width=8, heads=4, hidden=8, blocks=1, **SMALL), translated()),
    "convolution": (lambda: models.sentiment_convolution(30, embedding=8, batchsize=ROWS, filters=6), REVIEWS),
    "unet": (lambda: trainable(models.unet((4, 8, 8), width=8, depth=2, padding="periodic")), FIELDS),
    "unet by groups": (lambda: trainable(models.unet((4, 8, 8), width=16, depth=1, normalisation="group")), FIELDS),
    "field_resnet": (lambda: trainable(models.field_resnet((4, 8, 8), width=8, blocks=1, dropout=0.2)), FIELDS),
    "deepesd": (lambda: trainable(models.deepesd((4, 8, 8), 64, filters=(8, 6, 4))), FIELDS),
    "convlstm": (lambda: trainable(models.convlstm((4, 8, 8), 2, out_steps=1, filters=(6, 4))), FIELDS),
    "tabm": (
        lambda: models.tabm(3, 0, [4, 12], 4, bins=[[-1.0, 0.0, 1.0]] * 3, members=4, width=8).job(
            train_steps=1, batch_size=ROWS
        ),
        (TABLE, {"data": RNG.integers(4, size=ROWS)}),
    ),
    "realmlp": (
        lambda: models.realmlp(3, 0, [4, 12], 4, width=8).job(train_steps=1, batch_size=ROWS),
        (TABLE, {"data": RNG.integers(4, size=ROWS)}),
    ),
    "lstm": (lambda: models.sentiment_lstm(30, embedding=8, batchsize=ROWS, hidden=5), REVIEWS),
    "cosine": (lambda: models.recommender(12, 20, 30, similarity="cosine", width=8, batchsize=ROWS), rated()),
    "product": (lambda: models.recommender(12, 20, 30, similarity="product", width=8, batchsize=ROWS), rated()),
}


@pytest.mark.parametrize(("dimension", "workers"), [(0, 4), (1, 2)])
@pytest.mark.parametrize("name", CASES)
def test_a_net_that_is_cut_has_the_gradients_of_the_whole(name: str, dimension: int, workers: int):
    make, (x, y) = CASES[name]
    job = make()
    narrow = () if name in ("gru", "transformer") else ONE_FEATURE  # a translator has a score for each word
    layers = [conf.replace(partition_dim=0 if conf.name in narrow else dimension) for conf in job.net.layer]
    job = job.replace(net=job.net.replace(layer=layers))
    whole = LocalNet(job, x, y, workers=1)
    params = whole.initial_params()
    expected = whole.backward(params, x, y, step=0)
    found = LocalNet(job, x, y, workers=workers).backward(params, x, y, step=0)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for param, gradient in expected.gradients.items():
        limit = 1e-5 * max(np.abs(_dense(gradient)).max(), 0.2)
        np.testing.assert_allclose(_dense(found.gradients[param]), _dense(gradient), rtol=0, atol=limit, err_msg=param)


def _dense(gradient: Any) -> np.ndarray:
    return gradient if isinstance(gradient, np.ndarray) else gradient.dense()
