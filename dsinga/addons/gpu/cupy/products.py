"""Matrix products by cuBLAS, with a precision for each call, inner products, and sums over rows in float64.

Float32 matrices give float32 products and sums; the result may be rounded to bfloat16. The precision says how factors
are rounded:

- "float32": not at all, without tensor cores;
- "tf32": to 10 bits of mantissa, inside the tensor cores;
- "bf16": to 7 bits of mantissa, before the product; bfloat16 matrices are used unchanged.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from dsinga.addons.gpu.cupy.arrays import cast, contiguous, real
from dsinga.addons.gpu.cupy.cublas import CuBlas
from dsinga.addons.gpu.cupy.cublaslt import CuBlasLt, LtProblem
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.ops.interface import Ops
from dsinga.ops.types import BFLOAT16, FLOAT32, Array

source = Source("channels")
_WIDTH = 32  # columns of a block
_BLOCKS = 528  # four for each multiprocessor of a large GPU
_MIN_ROWS = 64  # of a block


class ChannelSums:
    """Divides a sum over contiguous rows (n, C) into blocks of columns and rows."""

    def __init__(self, rows: int, channels: int):
        joined = gcd(rows, max(1, _WIDTH // channels))
        self.channels, self.columns, self.rows = channels, joined * channels, rows // joined
        across = -(-self.columns // _WIDTH)
        stretches = max(1, min(-(-self.rows // _MIN_ROWS), _BLOCKS // across))
        self.stretch = -(-self.rows // stretches)
        self.grid = across, -(-self.rows // self.stretch)

    def partial(self, kernel: str, dtype: np.dtype, *arguments: object, results: int = 1) -> Array:
        """Run a kernel that adds each block's rows; return its ``results`` as (results, blocks, columns)."""
        sums = cupy.empty((results, self.grid[1], self.columns), np.float64)
        source.grid(kernel, dtype, self.grid, *arguments, *sums, self.rows, self.stretch, self.columns)
        return sums

    def total(self, partial: Array, factor: float = 1.0, rounded: np.dtype | None = None) -> Array:
        """Add up partial sums; return (results, C) times ``factor``, in float64 or the dtype ``rounded``."""
        result = cupy.empty((len(partial), self.channels), rounded or np.float64)
        places = (None, result) if rounded else (result, None)
        source.rows("add_partial", result.dtype, result.size, partial, *places, factor, *self.counts())
        return result

    def counts(self) -> tuple[int, int]:
        """Return the last arguments of kernels that add partial sums: the sums per channel, and C."""
        return self.grid[1] * self.columns // self.channels, self.channels


def column_sums(x: Array, y: Array | None = None, rounded: np.dtype | None = None) -> Array:
    """Sum contiguous x (n, C), or x·y, over n, in float64 or the dtype ``rounded``."""
    if not x.size:
        return cupy.zeros(x.shape[1], rounded or np.float64)
    sums = ChannelSums(*x.shape)
    partial = sums.partial("sums_of", x.dtype, x) if y is None else sums.partial("sums_of_products", x.dtype, x, y)
    return sums.total(partial, rounded=rounded)[0]


cublas = cupy.cuda.cublas
_elementwise = Source("elementwise")
PRECISIONS = ("float32", "tf32", "bf16")


class MatrixOperand(NamedTuple):
    """A matrix for cuBLAS: its shape, and ``step``, the stride of its rows, or of columns if ``transposed``."""

    array: Array
    shape: tuple[int, int]
    transposed: bool
    step: int

    @property
    def transpose(self) -> MatrixOperand:
        """The transpose, in the same memory."""
        return self._replace(shape=self.shape[::-1], transposed=not self.transposed)


def operand(x: Array, bf16: bool = False) -> MatrixOperand:
    """Return a matrix (m, n) as an operand, copied if neither rows nor columns are contiguous."""
    return _located(cast(x, BFLOAT16) if bf16 else x)


def _located(x: Array) -> MatrixOperand:
    (rows, columns), size = x.shape, x.itemsize
    if x.flags.c_contiguous:
        return MatrixOperand(x, x.shape, False, max(1, columns))
    if x.flags.f_contiguous:
        return MatrixOperand(x, x.shape, True, max(1, rows))
    if x.strides[1] == size and x.strides[0] >= columns * size and x.strides[0] % size == 0:
        return MatrixOperand(x, x.shape, False, x.strides[0] // size)
    if x.strides[0] == size and x.strides[1] >= rows * size and x.strides[1] % size == 0:
        return MatrixOperand(x, x.shape, True, x.strides[1] // size)
    return _located(contiguous(x))


class Blas:
    """cuBLAS's products in one precision; row-major matrices are its column-major ones transposed: Cᵀ = Bᵀ Aᵀ."""

    def __init__(self, precision: str):
        self.bf16, self._cublas = precision == "bf16", CuBlas()
        self._cublaslt = CuBlasLt(self._cublas) if precision != "float32" else None
        self._single = cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if precision == "tf32" else cublas.CUBLAS_COMPUTE_32F

    def multiply(
        self, a: MatrixOperand | Array, b: MatrixOperand | Array, out: Array | None = None, add: bool = False
    ) -> Array:
        """Multiply a (m, k) and b (k, n) into ``out`` with contiguous rows, added to it if ``add``.

        Without ``out`` it is float32, or float64 for float64 factors.
        """
        if not isinstance(a, MatrixOperand):
            a = operand(a, self.bf16)
        if not isinstance(b, MatrixOperand):
            b = operand(b, self.bf16)
        (m, k), n = a.shape, b.shape[1]
        assert k == b.shape[0], f"{a.shape} does not multiply {b.shape}"
        if out is None:
            out = cupy.empty((m, n), real(a.array.dtype))
        if not k and not add:
            out[...] = 0
        if not (m and n and k):
            return out
        kind, zero, one, size = _KINDS[out.dtype]
        assert a.array.dtype == b.array.dtype, "a product has factors of two dtypes"
        factors = _KINDS[a.array.dtype][0]
        self._cublas.gemm(
            *(b.transposed, a.transposed, n, m, k, one),
            *(b.array.data.ptr, factors, b.step),
            *(a.array.data.ptr, factors, a.step),
            *(one if add else zero, out.data.ptr, kind, max(n, out.strides[0] // size)),
            *(cublas.CUBLAS_COMPUTE_64F if kind == _FLOAT64 else self._single, cublas.CUBLAS_GEMM_DEFAULT),
        )
        return out

    def multiply_with_bias(
        self, left: MatrixOperand, right: MatrixOperand, bias: Array, out: Array, rectified: bool
    ) -> bool:
        """Write left·right + bias, perhaps rectified, to ``out`` in one launch; return whether that was possible.

        Left is (m, k), right (k, n), bias (n,); bias and ``out`` (m, n) are C-contiguous.
        """
        if self._cublaslt is None or out.dtype != FLOAT32 or not (out.size and left.shape[1]):
            return False
        (m, k), n, (kind, zero, one, _) = left.shape, right.shape[1], _KINDS[FLOAT32]
        factors = _KINDS[left.array.dtype][0]
        problem = LtProblem(
            (right.transposed, left.transposed), (n, m, k), (right.step, left.step, n), (factors, factors, kind),
            self._single, kind, rectified,
        )  # fmt: skip
        addresses = right.array.data.ptr, left.array.data.ptr, bias.data.ptr, out.data.ptr
        return self._cublaslt.multiply(problem, addresses, one, zero)

    def algorithms(self) -> tuple[int, int]:
        """Return how many products with bias have, and lack, an algorithm of this thread's cuBLASLt."""
        return (0, 0) if self._cublaslt is None else self._cublaslt.count()

    def multiply_all(self, a: Array, b: Array) -> Array:
        """Multiply the matrices a (..., m, k) and b (..., k, n), unrounded in every precision."""
        (a, left, a_step), (b, right, b_step) = _batch(a), _batch(b)
        (m, k), n = a.shape[-2:], b.shape[-1]
        assert (*a.shape[:-2], k) == b.shape[:-1], f"{a.shape} does not multiply {b.shape}"
        out = (cupy.empty if k else cupy.zeros)((*a.shape[:-1], n), a.dtype)
        if not (out.size and k):
            return out
        kind, zero, one, _ = _KINDS[out.dtype]
        self._cublas.gemm_batched(
            *(right, left, n, m, k, one),
            *(b.data.ptr, kind, b_step, k * n),
            *(a.data.ptr, kind, a_step, m * k),
            *(zero, out.data.ptr, kind, n, m * n, out.size // (m * n)),
            *(cublas.CUBLAS_COMPUTE_32F if kind == _FLOAT32 else cublas.CUBLAS_COMPUTE_64F, cublas.CUBLAS_GEMM_DEFAULT),
        )
        return out


def _batch(x: Array) -> tuple[Array, bool, int]:
    if x.swapaxes(-1, -2).flags.c_contiguous and not x.flags.c_contiguous:
        return x, True, max(1, x.shape[-2])
    return contiguous(x), False, max(1, x.shape[-1])


_FLOAT32, _FLOAT64, _BFLOAT16 = (getattr(cupy.cuda.runtime, f"CUDA_R_{name}") for name in ("32F", "64F", "16BF"))
_ZERO_AND_ONE = {np.dtype(kind): np.array([0, 1], kind) for kind in (np.float32, np.float64)}
_KINDS: dict[np.dtype, tuple[int, int, int, int]] = {
    dtype: (kind, numbers.ctypes.data, numbers.ctypes.data + numbers.itemsize, dtype.itemsize)
    for dtype, kind in ((FLOAT32, _FLOAT32), (np.dtype(np.float64), _FLOAT64), (BFLOAT16, _BFLOAT16))
    for numbers in (_ZERO_AND_ONE[real(dtype)],)
}
"""cuBLAS's number of a dtype, the addresses of a zero and a one in host memory, and the bytes of a number.

Zero and one have the dtype of sums: float32 for products of bfloat16.
"""


class CupyProducts(Ops):
    """Inner products (dense layers) and their gradients."""

    blas: Blas

    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        return self._inner_product(x, w, b, transpose, False)

    def rectified_inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        return self._inner_product(x, w, b, transpose, True)

    def _inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool, rectified: bool) -> Array:
        y = cupy.empty((x.shape[0], w.shape[1 if transpose else 0]), real(x.dtype))
        left, right = operand(x, self.blas.bf16), operand(w if transpose else w.T, self.blas.bf16)
        if b is not None:
            b = contiguous(b, y.dtype)
            if self.blas.multiply_with_bias(left, right, b, y, rectified):
                return y
            _elementwise.each("fill_rows", y.dtype, y.size, b, y, y.shape[1])
        y = self.blas.multiply(left, right, y, add=b is not None)
        return self.relu(y) if rectified else y

    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool, later: bool = False
    ) -> tuple[Array | None, Array, Array | None]:
        features, gradient = operand(x, self.blas.bf16), operand(dy, self.blas.bf16)
        dx = None
        if need_dx:
            dx = self.blas.multiply(gradient, w.T if transpose else w, cupy.empty(x.shape, x.dtype))
        left, right = (features, gradient) if transpose else (gradient, features)
        dw = self.blas.multiply(left.transpose, right)
        db = column_sums(contiguous(dy), rounded=real(dy.dtype)) if need_db else None
        return dx, dw, db
