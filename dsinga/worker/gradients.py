"""Checking the gradients that an algorithm pushes, and cutting them into slices."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from dsinga.errors import UserError
from dsinga.ops import Array, SparseRows
from dsinga.ops.sparse import fault
from dsinga.registry import nearest
from dsinga.server import Slice


def check_gradient(
    name: str, gradient: Array | SparseRows, shapes: Mapping[str, tuple[int, ...]], pushed: Collection[str], step: int
) -> None:
    """Raise UserError unless a gradient is valid: float32, of its param's shape, and the first one of this step."""
    if name not in shapes:
        raise UserError(f"a gradient was pushed for {name!r}, which is no param of the net{nearest(name, shapes)}")
    if name in pushed:
        raise UserError(f"param {name!r} was pushed twice in step {step}; push the sum, once")
    shape, dtype = getattr(gradient, "shape", None), getattr(gradient, "dtype", None)
    if shape != shapes[name] or dtype != np.float32:
        actual = f"{dtype} of shape {shape}" if dtype else f"a {type(gradient).__name__}"
        expected = f"float32 of shape {shapes[name]}"
        raise UserError(f"the gradient that was pushed for param {name!r} must be {expected}, not {actual}")
    if isinstance(gradient, SparseRows) and (message := fault(gradient)):
        raise UserError(f"the gradient that was pushed for param {name!r}: {message}")


def part_of(gradient: Array | SparseRows, slice_: Slice) -> Array | SparseRows:
    """Return a slice's part of a gradient: flat, or sparse rows where the slice has a width."""
    if not isinstance(gradient, SparseRows):
        return gradient[slice_.start : slice_.stop]
    part = gradient.part(slice_.start // slice_.width, slice_.stop // slice_.width)
    return SparseRows(part.rows, part.values.reshape(-1, slice_.width), (part.shape[0], slice_.width))
