"""Applies operators to tensors in which the batch is merged with its neighbours, such as heads or steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_numbers import NUMBERS
from dsinga.addons.onnx.values import Constant
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import Tensor, batched

KNOWING = {"Reshape", "Transpose", "Shape", "Size"}  # take such tensors as they are
ALONG_LAST = {
    *NUMBERS,
    *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Neg", "Abs", "Where", "Cast", "MatMul", "Gemm", "Dense", "Gather"),
    *("Softmax", "LayerNormalization", "RMSNormalization"),
}
# Of images (B·T, C, H, W) of steps: by layers that compute each step of (B, T, C, H, W).
BY_STEP = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}


def of_merged(place: NodePlace, make: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Apply an operator to operands, some with axes that a reshape has merged.

    Operators of single numbers or later axes compute with the axes apart.
    """
    kind = place.node.op_type
    if kind in KNOWING:
        return place.call(make, operands)
    tensors = [x for x in operands if isinstance(x, Tensor) and x.batch_axis is not None]
    start, stop = next(x.merged for x in tensors if x.merged)
    if kind in BY_STEP and tensors == [operands[0]] and (start, stop, tensors[0].batch_axis) == (0, 2, 0):
        return _of_steps(place, make, tensors[0], operands[1:])
    later = tensors[0].rank - stop
    wide = [
        x for x in operands if isinstance(x, Constant) and x.array.ndim > later and kind not in ("MatMul", "Gather")
    ]
    is_aligned = all(x.merged and x.rank - x.merged[1] == later and x.merged[0] == start for x in tensors)
    if kind not in ALONG_LAST or not is_aligned or any(x.array.shape[-later - 1] > 1 for x in wide if kind != "Gemm"):
        raise NoLayer("of a tensor in which one axis has the records of a batch and more")
    apart = [replace(x, merged=None) if x in tensors else x for x in operands]
    return replace(place.call(make, apart, len(tensors[0].seen)), merged=(start, stop))


def _of_steps(place: NodePlace, make: Callable[..., Any], x: Tensor, others: Sequence[Any]) -> Tensor:
    records, _, *sizes = x.shape
    step = nn.Input(tuple(sizes))
    result = place.call(make, [Tensor(place, step, (records, *sizes)), *others]).symbol
    builders = []
    while result is not step:
        builders.append(result.builder)
        (result,) = result.sources
    symbol = x.symbol
    for builder in reversed(builders):
        symbol = nn.TimeDistributed(builder)(symbol)
    return replace(batched(place, symbol), merged=(0, 2))
