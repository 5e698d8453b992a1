"""Makes layers for ONNX's products with weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, NotImportable, feature
from dsinga.nn.writing.reshaping import reshaped


def dense(place: NodePlace, x: Any, weight: Any, bias: Any = None, transposed: bool = False) -> Any:
    """Return a fully connected layer of the last axis; ``weight`` is (inputs, outputs), or ``transposed``."""
    if not isinstance(weight, Constant) or weight.array.ndim != 2:
        raise NotImportable("with a weight that is no matrix of the file")
    array = np.asarray(weight.array, np.float32)
    array = array if transposed else array.T
    params = {"weight": (weight, np.ascontiguousarray(array))}
    if bias is not None:
        if not isinstance(bias, Constant) or bias.array.size not in (1, len(array)):
            raise NotImportable("with a bias that is no row of the file")
        params["bias"] = (bias, np.broadcast_to(np.asarray(bias.array, np.float32).reshape(-1), len(array)))
    layer = place.layer(nn.Dense, params, units=len(array), use_bias=bias is not None)
    symbol, rows = feature(x), x.shape[1:]
    if len(rows) < 3:
        return layer(symbol)
    y = layer(reshaped(place, symbol, (int(np.prod(rows[:-1])), rows[-1]), ".rows"))
    return reshaped(place, y, (*rows[:-1], len(array)), ".axes")


def gemm(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return alpha·x·W + beta·b, a fully connected layer."""
    if place.attribute("transA", 0):
        raise NotImportable("with transA")
    alpha, beta = place.attribute("alpha", 1.0), place.attribute("beta", 1.0)
    if alpha != 1 and isinstance(weight, Constant):
        weight = Constant(weight.array * alpha)
    if beta != 1 and isinstance(bias, Constant):
        bias = Constant(bias.array * beta)
    return dense(place, x, weight, bias, bool(place.attribute("transB", 0)))


DENSE: Mapping[str, Callable[..., Any]] = {
    "Gemm": gemm,
    "Dense": dense,
}
