"""Layers of nn compute what Keras's compute; ``tests/support/keras_figures.py`` says how its figures were made."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from tests.support.keras_figures import FILE, LAYERS, numbers

FIGURES = json.loads(FILE.read_text())
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def layer_of(kind: str, arguments: dict[str, Any]) -> Any:
    *wrapper, kind = kind.split()
    layer = getattr(nn, kind)(**arguments)
    return nn.Bidirectional(layer) if wrapper else layer


def one_direction(kind: str, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    """Return Keras's weights of a recurrent layer as params: of a GRU those of each gate, z, r and c, by themselves."""
    gates = 3 if kind == "GRU" else 1
    kernels, recurrents = (np.split(array, gates, axis=1) for array in (kernel, recurrent))
    return [*(array.T for array in (*kernels, *recurrents)), *np.split(bias, gates)]


def params_of(kind: str, record: tuple[int, ...], arguments: dict[str, Any]) -> list[np.ndarray]:
    """Return params as Keras's layer has its weights, which are ``numbers`` of their shapes."""
    if kind == "Conv2D":
        size = arguments["kernel_size"]
        rows, columns = size if isinstance(size, tuple) else (size, size)
        kernel = numbers(rows, columns, record[-1], arguments["filters"])
        filters = kernel.transpose(3, 2, 0, 1).reshape(len(kernel.T), -1)
        return [filters, numbers(arguments["filters"])]
    *wrapper, kind = kind.split()
    gates = {"GRU": 3, "LSTM": 4, "SimpleRNN": 1}.get(kind)
    if gates is None:
        return []
    units, inputs = arguments["units"], record[-1]
    bias = numbers(2, gates * units)[0] if kind == "GRU" else numbers(gates * units)
    one = one_direction(kind, numbers(inputs, gates * units), numbers(units, gates * units), bias)
    return one * (2 if wrapper else 1)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_keras_computes(name: str):
    kind, arguments, record = LAYERS[name]
    x = numbers(3, *record)
    images = len(record) == 3
    model = nn.Sequential([nn.Input((record[-1], *record[:-1]) if images else record), layer_of(kind, arguments)])
    model.set_weights(params_of(kind, record, arguments))
    y = model.predict(np.moveaxis(x, -1, 1) if images else x)
    np.testing.assert_allclose(np.moveaxis(y, 1, -1) if images else y, FIGURES["layers"][name], **CLOSE)
