"""Makes layers for ONNX's products with weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_arithmetic import add, aligned, multiply, operands_of, with_batch
from dsinga.addons.onnx.operators_attention import spelled_out
from dsinga.addons.onnx.operators_shapes import view
from dsinga.addons.onnx.values import Constant, NotImportable, Value, without_repeats
from dsinga.nn.writing.reshaping import reshaped, rows_of


def dense(place: NodePlace, x: Any, weight: Any, bias: Any = None, transposed: bool = False) -> Any:
    """Return a fully connected layer of the last axis; ``weight`` is (inputs, outputs), or ``transposed``."""
    if not isinstance(weight, Constant) or weight.array.ndim != 2:
        raise NotImportable("with a weight that is no matrix of the file")
    array = np.asarray(weight.array, np.float32)
    array = array if transposed else array.T
    units, settings = len(array), dict[str, Any]()
    if not place.made.is_owned(weight, array) and place.made.is_owned(weight, array.T):
        array, settings = array.T, {"transpose": True}  # the weight of another layer, as a decoder takes it
    params = {"weight": (weight, array)}
    if bias is not None:
        if not isinstance(bias, Constant) or bias.array.size not in (1, units):
            raise NotImportable("with a bias that is no row of the file")
        params["bias"] = (bias, np.broadcast_to(np.asarray(bias.array, np.float32).reshape(-1), units))
    layer = place.layer(nn.Dense, params, units=units, use_bias=bias is not None, **settings)
    if x.batch_axis is None or x.batch_axis == x.rank - 1:
        raise NotImportable("of a tensor whose last axis is the batch, or that has none")
    rows = rows_of(x.symbol)
    if len(rows) < 3:
        return with_batch(x, layer(x.symbol), x.rank, x.batch_axis)
    y = layer(reshaped(place, x.symbol, (int(np.prod(rows[:-1])), rows[-1]), ".rows"))
    return with_batch(x, reshaped(place, y, (*rows[:-1], units), ".axes"), x.rank, x.batch_axis)


def matmul(place: NodePlace, a: Any, b: Any) -> Any:
    """Return a product of matrices, which of a weight of the file is a fully connected layer."""
    if isinstance(b, Constant) and b.array.ndim == 1:
        return view(place, dense(place, a, Constant(b.array[:, None], b.name)), a.shape[:-1])
    if isinstance(a, Constant) and a.array.ndim == 1:
        y = matmul(place, replace(a, array=a.array[None]), b)
        return view(place, y, (*y.shape[:-2], y.shape[-1]))
    if isinstance(b, Constant) and b.array.ndim == 2 and a.batch_axis != a.rank - 1:
        return dense(place, a, b)
    tensors = [x for x in operands_of(place, [a, b]) if isinstance(x, Value)]
    symbols, rank, axis = aligned(place, tensors)
    if len(tensors) < 2 or min(x.rank for x in tensors) < 2 or axis is None or axis >= rank - 2:
        raise NotImportable("of vectors, or along the axis of the batch")
    owner = next(x for x in tensors if x.batch_axis is not None)
    y = spelled_out(place, *symbols) if axis == 0 and rank == 4 else None
    y = nn.Layer("kArithmetic", operator="MATMUL", name=place.name())(symbols) if y is None else y
    return with_batch(owner, y, rank, axis)


def gemm(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return alpha·x·W + beta·b, a fully connected layer."""
    if place.attribute("transA", 0):
        raise NotImportable("with transA")
    alpha, beta = place.attribute("alpha", 1.0), place.attribute("beta", 1.0)
    if alpha != 1 and isinstance(weight, Constant):
        weight = Constant(np.broadcast_to(without_repeats(weight.array) * alpha, weight.array.shape))
    if beta != 1 and isinstance(bias, Constant):
        bias = Constant(bias.array * beta)
    transposed = bool(place.attribute("transB", 0))
    if isinstance(bias, Value) or (bias is not None and bias.array.ndim == 2 and len(bias.array) > 1):
        return add(place, dense(place, x, weight, None, transposed), multiply(place, bias, beta))
    return dense(place, x, weight, bias, transposed)


DENSE: Mapping[str, Callable[..., Any]] = {"Gemm": gemm, "MatMul": matmul, "Dense": dense}
