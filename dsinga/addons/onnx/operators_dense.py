"""Makes layers for ONNX's products with weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.naming import is_lone
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_arithmetic import add, aligned, as_tensor, multiply, with_batch
from dsinga.addons.onnx.operators_attention import spelled_out
from dsinga.addons.onnx.operators_norms import is_one_param
from dsinga.addons.onnx.operators_shapes import view
from dsinga.addons.onnx.values import Constant, NotImportable, Value
from dsinga.nn.writing.reshaping import permuted, reshaped, rows_of


def dense(place: NodePlace, x: Any, weight: Any, bias: Any = None, transposed: bool = False) -> Any:
    """Return a fully connected layer of the last axis; ``weight`` is (inputs, outputs), or ``transposed``.

    With a weight that layers compute of params, or of params alone, it is a product of matrices.
    """
    is_part = isinstance(weight, Constant) and weight.made is not None and not weight.name
    if is_part and any(map(is_lone, weight.params())):  # of a param of no module
        weight = place.vector(weight)
    if isinstance(weight, Value) or x.batch_axis is None:
        y = product(place, x, weight, transposed)
        return y if bias is None else add(place, y, bias)
    if isinstance(bias, Value) or is_one_param(bias, weight.array.shape[:1] if transposed else weight.array.shape[1:]):
        return add(place, dense(place, x, weight, None, transposed), bias)
    if weight.array.ndim != 2:
        raise NotImportable("with a weight that is no matrix of the file")
    array = np.asarray(weight.array, np.float32)
    array = array if transposed else array.T
    units, settings = len(array), dict[str, Any]()
    is_as_given = not transposed and weight.is_param and weight.made is None and is_lone(weight.name)
    if not place.made.is_owned(weight, array) and (place.made.is_owned(weight, array.T) or is_as_given):
        # The weight of another layer, as a decoder takes it, or a param of no module in the form that the file has.
        array, settings = array.T, {"transpose": True}
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
        return view(place, dense(place, a, replace(b, array=b.array[:, None])), a.shape[:-1])
    if isinstance(a, Constant) and a.array.ndim == 1:
        y = matmul(place, replace(a, array=a.array[None]), b)
        return view(place, y, (*y.shape[:-2], y.shape[-1]))
    if isinstance(b, Constant) and b.array.ndim == 2 and a.batch_axis not in (None, a.rank - 1):
        return dense(place, a, b)
    return product(place, a, b)


def product(place: NodePlace, a: Any, b: Any, transposed: bool = False) -> Any:
    """Return the product of matrices that layers compute, or one of both is constant; rows may be records."""
    a, b = (as_tensor(place, x, (a, b)) for x in (a, b))
    if transposed:
        b = replace(b, symbol=permuted(place, b.symbol, [2, 1]), shape=b.shape[::-1])
    if b.rank == 1 and b.batch_axis is None:
        return view(place, product(place, a, view(place, b, (*b.shape, 1))), a.shape[:-1])
    if a.rank > 1 and a.batch_axis == a.rank - 2 and b.batch_axis is None:
        y = product(place, view(place, a, (*a.shape[:-1], 1, a.shape[-1])), b)
        return view(place, y, (*y.shape[:-2], y.shape[-1]))
    symbols, rank, axis = aligned(place, [a, b])
    if min(a.rank, b.rank) < 2 or (axis is not None and axis >= rank - 2):
        raise NotImportable("of vectors, or along the axis of the batch")
    owner = b if a.batch_axis is None else a
    y = spelled_out(place, *symbols) if axis == 0 and rank == 4 else None
    y = nn.Layer("kArithmetic", operator="MATMUL", name=place.name())(symbols) if y is None else y
    return with_batch(owner, y, rank, axis)


def gemm(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return alpha·x·W + beta·b, a fully connected layer."""
    if place.attribute("transA", 0):
        raise NotImportable("with transA")
    alpha, beta = place.attribute("alpha", 1.0), place.attribute("beta", 1.0)
    apart = NodePlace(place.made, place.node, f"{place.base}.scaled")
    x = x if alpha == 1 else multiply(apart, x, alpha)
    transposed = bool(place.attribute("transB", 0))
    if bias is not None and (beta != 1 or isinstance(bias, Value) or (bias.array.ndim == 2 and len(bias.array) > 1)):
        bias = bias if beta == 1 else multiply(apart, as_tensor(apart, bias, (x,)), beta)
        return add(place, dense(place, x, weight, None, transposed), bias)
    return dense(place, x, weight, bias, transposed)


def einsum(place: NodePlace, *operands: Any) -> Any:
    """Return a sum of products of two tensors by Einstein's convention, as a product of matrices."""
    left, arrow, out = place.attribute("equation").replace(" ", "").partition("->")
    names = left.split(",")
    if len(operands) != 2 or not arrow or any(len({*each}) < len(each) or "." in each for each in (*names, out)):
        raise NotImportable("of other than two tensors, with an axis twice, or without the axes of the result")
    tensors = [as_tensor(place, x, operands) for x in operands]
    pairs = [*zip(names, tensors, strict=True)]
    records = {each[x.batch_axis] for each, x in pairs if x.batch_axis is not None}
    if len(records) > 1 or records - {*out} or any(x.batch_axis is None and records & {*each} for each, x in pairs):
        raise NotImportable("over the records of a batch")
    first, second = (each.translate(dict.fromkeys(map(ord, records))) for each in names)
    sizes = {name: size for each, x in pairs for name, size in zip(each, x.shape, strict=True)}
    both, summed = ([x for x in first if x in second and (x in out) is kept] for kept in (True, False))
    alone = [[x for x in each if x not in other] for each, other in ((first, second), (second, first))]
    if {*alone[0], *alone[1]} - {*out}:
        raise NotImportable("that sums over an axis of one tensor")

    def matrices(symbol: Any, axes: str, *parts: list[str]) -> Any:
        turned = permuted(place, symbol, [axes.index(x) + 1 for part in parts for x in part], ".turned")
        return reshaped(place, turned, [math.prod(sizes[x] for x in part) for part in parts], ".matrices")

    factors = (
        matrices(tensors[0].symbol, first, both, alone[0], summed),
        matrices(tensors[1].symbol, second, both, summed, alone[1]),
    )
    made = [*both, *alone[0], *alone[1]]
    y = nn.Layer("kArithmetic", operator="MATMUL", name=place.name())(factors)
    y = reshaped(place, y, [sizes[x] for x in made] or [1], ".axes")
    y = permuted(place, y, [made.index(x) + 1 for x in out if x not in records], ".order")
    return Value(y, tuple(sizes[x] for x in out), out.index(*records) if records else None)


DENSE: Mapping[str, Callable[..., Any]] = {"Gemm": gemm, "MatMul": matmul, "Dense": dense, "Einsum": einsum}
