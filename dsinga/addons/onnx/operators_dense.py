"""ONNX's products with weights, which become fully connected layers, and other products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.naming import is_lone
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_attention import spelled_out
from dsinga.addons.onnx.operators_norms import is_one_param
from dsinga.addons.onnx.values import Constant
from dsinga.nn.words.basic_layers import Dense
from dsinga.nn.writing import composed
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import Tensor


def dense(place: NodePlace, x: Any, weight: Any, bias: Any = None, transposed: bool = False) -> Any:
    """Return a fully connected layer of the last axis; ``weight`` is (inputs, outputs), or ``transposed``.

    With a weight that layers compute of params, or of params alone, it is a product of matrices.
    """
    is_part = isinstance(weight, Constant) and weight.made is not None and not weight.name
    if is_part and any(map(is_lone, weight.params())):  # of a param of no module
        weight = place.vector(weight)
    if isinstance(weight, Tensor) or x.batch_axis is None:
        weight = place.tensor(weight, [x])
        y = product(place, x, weight.swap(0, 1) if transposed else weight)
        return y if bias is None else y + bias
    if isinstance(bias, Tensor) or is_one_param(bias, weight.array.shape[:1] if transposed else weight.array.shape[1:]):
        return dense(place, x, weight, None, transposed) + bias
    if weight.array.ndim != 2:
        raise NoLayer("with a weight that is no matrix of the file")
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
            raise NoLayer("with a bias that is no row of the file")
        params["bias"] = (bias, np.broadcast_to(np.asarray(bias.array, np.float32).reshape(-1), units))
    layer = place.layer(Dense, params, units=units, use_bias=bias is not None, **settings)
    return composed.dense(x, layer, units)


def matmul(place: NodePlace, a: Any, b: Any) -> Any:
    """Return a product of matrices, which of a weight of the file is a fully connected layer."""
    if isinstance(b, Constant) and b.array.ndim == 1:
        return dense(place, a, replace(b, array=b.array[:, None])).reshape(a.shape[:-1])
    if isinstance(b, Constant) and b.array.ndim == 2 and a.batch_axis not in (None, a.rank - 1):
        return dense(place, a, b)
    return product(place, a, b)


def product(place: NodePlace, a: Any, b: Any) -> Tensor:
    """Return the product of matrices that layers compute, or one of both is constant."""
    a, b = (place.tensor(x, (a, b)) for x in (a, b))
    y = spelled_out(a, b)
    return a @ b if y is None else y


def gemm(
    place: NodePlace, x: Any, weight: Any, bias: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0,
) -> Any:  # fmt: skip
    """Return alpha·x·W + beta·b, a fully connected layer."""
    if transA:
        raise NoLayer("with transA")
    apart = NodePlace(place.made, place.node, f"{place.base}.scaled")
    x = x if alpha == 1 else replace(replace(x, place=apart) * alpha, place=place)
    if bias is not None and (beta != 1 or isinstance(bias, Tensor) or (bias.array.ndim == 2 and len(bias.array) > 1)):
        bias = bias if beta == 1 else apart.tensor(bias, (x,)) * beta
        return dense(place, x, weight, None, bool(transB)) + bias
    return dense(place, x, weight, bias, bool(transB))


def summed(place: NodePlace, *operands: Any, equation: str) -> Tensor:
    """Return a sum of products of two tensors by Einstein's convention."""
    return composed.einsum([place.tensor(x, operands) for x in operands], equation)


DENSE: Mapping[str, Callable[..., Any]] = {"Gemm": gemm, "MatMul": matmul, "Dense": dense, "Einsum": summed}
