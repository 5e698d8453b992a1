"""Small models of every kind with their records, to train in blocks: convolutions, texts, tables, fields."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import dsinga
from dsinga import models, nn

BATCH = 16


class Case(NamedTuple):
    """A compiled model, and the arguments of ``fit`` for its records."""

    model: nn.Model
    data: tuple[Any, ...]
    fields: dict[str, Any] = {}


def adam() -> Any:
    """Return Adam with clipping and averages, whose order of sums must not depend on the workers."""
    return nn.Adam(0.01, clip_global_norm=0.5, use_ema=True, ema_momentum=0.9)


def _classes(layers: list[Any], *shape: int) -> Case:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3 * BATCH + 5, *shape)).astype(np.float32), rng.integers(4, size=3 * BATCH + 5)
    model = nn.Sequential([nn.Input(shape), *layers, nn.Flatten(), nn.Dense(4)])
    model.compile(adam(), "sparse_categorical_crossentropy")
    return Case(model, (x, y), {"validation_data": (x[:21], y[:21])})


def mlp() -> Case:
    """Return a net of dense layers with dropout and two losses."""
    _, (x, y), _ = _classes([], 12)
    inputs = nn.Input((12,))
    hidden = nn.Dropout(0.3)(nn.Dense(24, activation="tanh")(inputs))
    model = nn.Model(inputs, [nn.Dense(4)(hidden), nn.Dense(2)(hidden)])
    model.compile(adam(), ["sparse_categorical_crossentropy", "mse"])
    return Case(model, (x, [y, x[:, :2]]), {"validation_data": (x[:21], [y[:21], x[:21, :2]])})


def convnet() -> Case:
    """Return a net of convolutions and pooling."""
    return _classes([nn.Conv2D(6, 3, activation="relu"), nn.MaxPooling2D(2), nn.SeparableConv2D(4, 2)], 3, 9, 9)


def resnet() -> Case:
    """Return a residual net, with statistics of the batch."""
    x = inputs = nn.Input((3, 8, 8))
    for _ in range(2):
        y = nn.BatchNormalization()(nn.Conv2D(3, 3, padding="same", use_bias=False)(x))
        x = nn.Activation("relu")(nn.Add()([x, y]))
    x = nn.BM(use_global_stats=True)(x)
    model = nn.Model(inputs, nn.Dense(4)(nn.GlobalAveragePooling2D()(x)))
    model.compile(adam(), "sparse_categorical_crossentropy")
    return Case(model, *_classes([], 3, 8, 8)[1:])


def gru() -> Case:
    """Return a recurrent net on texts of different lengths."""
    rng = np.random.default_rng(1)
    texts = np.zeros((3 * BATCH, 7), np.int64)
    for row, length in enumerate(rng.integers(1, 8, size=len(texts))):
        texts[row, :length] = rng.integers(1, 12, size=length)
    layers = [nn.Embedding(12, 6, mask_zero=True), nn.GRU(5), nn.Dense(3)]
    model = nn.Sequential(layers)
    model.compile(adam(), "sparse_categorical_crossentropy")
    return Case(model, (texts, rng.integers(3, size=len(texts))))


def transformer() -> Case:
    """Return attention with a residual and layer normalisation."""
    x = inputs = nn.Input((6, 8))
    x = nn.LayerNormalization()(nn.Add()([x, nn.MultiHeadAttention(2, 4)(x, x)]))
    model = nn.Model(inputs, nn.Dense(4)(nn.GlobalAveragePooling1D()(x)))
    model.compile(adam(), "sparse_categorical_crossentropy")
    return Case(model, *_classes([], 6, 8)[1:])


def tabm() -> Case:
    """Return TabM, with members and an embedding."""
    rng = np.random.default_rng(2)
    x = np.hstack([rng.normal(size=(3 * BATCH, 3)), rng.integers(4, size=(3 * BATCH, 1))]).astype(np.float32)
    model = models.tabm(3, categories=[4], outputs=3, members=4, depth=1, width=8)
    return Case(model, (x, rng.integers(3, size=len(x))))


def windows() -> Case:
    """Return convolutions on windows of a Dataset with points on land."""
    rng = np.random.default_rng(3)
    sea = (rng.uniform(size=(6, 8)) > 0.3)[None]
    t = np.where(sea, rng.normal(size=(30, 6, 8)), np.nan).astype(np.float32)
    dims = "time", "lat", "lon"
    coordinates = {"time": np.arange(30), "lat": np.linspace(60, -60, 6), "lon": np.arange(8)}
    data = xr.Dataset({"t": (dims, t)}, coordinates)
    model = nn.Sequential([nn.Conv2D(4, 3, padding="same", activation="tanh"), nn.Conv2D(1, 1)])
    model.compile(adam(), nn.MeanSquaredError(masked=True))
    return Case(model, (dsinga.windows(data, inputs=["t"], targets=["t"], input_dims={"time": 1}, mask=True),))


def tags() -> Case:
    """Return a conditional random field on features of words."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(3 * BATCH, 5, 4)).astype(np.float32), rng.integers(3, size=(3 * BATCH, 5))
    model = nn.Sequential([nn.Input((5, 4)), nn.TimeDistributed(nn.Dense(3))])
    model.compile(adam(), nn.CRF())
    return Case(model, (x, y))


NETS: dict[str, Callable[[], Case]] = {
    make.__name__: make for make in (mlp, convnet, resnet, gru, transformer, tabm, windows, tags)
}


def fitted(name: str, **options: Any) -> nn.Model:
    """Return a model of :data:`NETS`, trained with these arguments of ``fit``."""
    model, data, fields = NETS[name]()
    defaults = {"batch_size": BATCH, "epochs": 2, "seed": 1, "progress": False}
    model.fit(*data, **{**fields, **defaults, **options})
    return model


def bits(model: nn.Model) -> list[Any]:
    """Return the params, the optimizer's state and the history of a model, without times, to compare."""
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in model.result.history]
    slots = {name: {slot: a.tobytes() for slot, a in of.items()} for name, of in model.trained.slots.items()}
    return [{name: array.tobytes() for name, array in model.params.items()}, slots, rows]


TIMES = "time", "samples_per_second"
