"""Compiled sums along the channels of batch normalisation, in one pass, as in ``dsinga.ops.onednn.batchnorm``.

Arrays are (k, n, w): n rows are added in float32 in order, the k sums in float64. Numbers are float32, or bfloat16 as
uint16, the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from dsinga.base.buffers import address
from dsinga.ops.compiled.compiler import is_compiled, load_loop
from dsinga.ops.types import FLOAT32, Array, NotCapturable

_LOOP = """
def loop(x, feature, dy, masked, rectified, partial, total, blocks, rows, width):
    if rectified:
        {rectified}
    else:
        {sums}
"""
_SUMS = """for k in range(blocks):
            for n in range(rows):
                start = (k * rows + n) * width
                for w in range(width):
                    {gradient}
                    before = partial[w] if n > 0 else np.float32(0.0)
                    partial[w] = before + gradient
                    before = partial[width + w] if n > 0 else np.float32(0.0)
                    partial[width + w] = before + {x} * gradient
            for w in range(2 * width):
                total[w] += partial[w]"""
_RECTIFIED = """slope = np.float32(1.0) if {feature} > 0.0 else np.float32(0.0)
                    gradient = {dy} * slope
                    masked[start + w] = {stored}"""
_NUMBER = {"f": "{}[start + w]", "H": "as_float32(np.uint32({}[start + w]) << np.uint32(16))"}
_STORED = {"f": "gradient", "H": "np.uint16(as_uint32(gradient) >> np.uint32(16))"}


class CompiledSums:
    """Sums of arrays (k, n, w) with numbers of one type, by a compiled loop."""

    def __init__(self, loop: Callable[..., None]):
        self._loop = loop

    def sums(self, x: Array, y: Array) -> Array:
        """Compute (Σ y, Σ x·y): (2, w) in float64."""
        return self._run((x, y, y, y), False)

    def rectified_sums(self, x: Array, feature: Array, dy: Array, masked: Array) -> Array:
        """Write ReLU's gradient, dy where ``feature`` > 0, else dy·0, to ``masked``; return the sums with it as y."""
        return self._run((x, feature, dy, masked), True)

    def _run(self, arrays: tuple[Array, Array, Array, Array], rectified: bool) -> Array:
        x = arrays[0]
        if not all(isinstance(each, np.ndarray) for each in arrays):
            raise NotCapturable("a compiled loop sums its arrays")
        if not all(each.flags.c_contiguous and each.shape == x.shape and each.dtype == x.dtype for each in arrays):
            raise ValueError("arrays differ in shape or type")
        width = x.shape[2]
        partial, total = np.empty((2, width), np.float32), np.zeros((2, width))
        self._loop(*map(address, arrays), rectified, address(partial), address(total), *x.shape)
        return total


def compiled_sums(x: Array) -> CompiledSums | None:
    """Return what sums arrays like ``x``; None without numba, and for small arrays."""
    return _of_type("f" if x.dtype == FLOAT32 else "H") if is_compiled(x.size) else None


@cache
def _of_type(letter: str) -> CompiledSums | None:
    numbers = {name: _NUMBER[letter].format(name) for name in ("x", "feature", "dy")}
    gradients = f"gradient = {numbers['dy']}", _RECTIFIED.format(**numbers, stored=_STORED[letter])
    sums, rectified = (_SUMS.format(x=numbers["x"], gradient=gradient) for gradient in gradients)
    loop = load_loop(_LOOP.format(sums=sums, rectified=rectified), f"{letter * 4}nfdnnn")
    return CompiledSums(loop) if loop else None
