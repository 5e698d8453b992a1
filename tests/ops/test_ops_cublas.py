"""The cupy backend's calls of cuBLAS, made to a small C library with cuBLAS's prototypes (emulation/cublas.cpp)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.support import emulated_cupy


@pytest.fixture(scope="module")
def ops() -> Any:
    return emulated_cupy.load()


def matrices(ops: Any, rows: int, columns: int, dtype: type) -> list[Any]:
    """Return arrays of the same numbers: rows contiguous, columns contiguous, parts of both, neither."""
    numbers = np.random.default_rng((rows, columns)).integers(-8, 8, (rows, columns)).astype(dtype)
    wide, tall = (np.zeros((2 * rows, 2 * columns), dtype) for _ in range(2))
    wide[:rows, 1 : columns + 1], tall[::2, ::2] = numbers, numbers
    device, wide_device = ops.asarray(numbers), ops.asarray(wide)
    transposed = ops.asarray(np.ascontiguousarray(wide.T))
    return [
        device,
        ops.asarray(np.ascontiguousarray(numbers.T)).T,
        wide_device[:rows, 1 : columns + 1],
        transposed.T[:rows, 1 : columns + 1],
        ops.asarray(tall)[::2, ::2],
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_products_of_all_layouts_are_numpys(ops: Any, precision: str, dtype: type):
    """Small integers, so that each product is exact in every precision; ``out`` is part of a wider array."""
    blas = ops.for_worker(0, precision).blas
    for a in matrices(ops, 3, 4, dtype):
        for b in matrices(ops, 4, 5, dtype):
            expected = ops.to_numpy(a) @ ops.to_numpy(b)
            np.testing.assert_array_equal(ops.to_numpy(blas.multiply(a, b)), expected)
            out = ops.asarray(np.ones((3, 9), dtype))
            blas.multiply(a, b, out[:, 2:7], add=True)
            np.testing.assert_array_equal(ops.to_numpy(out)[:, 2:7], expected + 1)
            np.testing.assert_array_equal(ops.to_numpy(out)[:, [0, 1, 7, 8]], 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_many_matrices_are_numpys(ops: Any, dtype: type):
    rng, blas = np.random.default_rng(0), ops.for_worker(0, "bf16").blas
    left, right = rng.standard_normal((2, 3, 4, 5)).astype(dtype), rng.standard_normal((2, 3, 5, 6)).astype(dtype)
    for a in (left, left.swapaxes(-1, -2).copy().swapaxes(-1, -2), left[:, ::-1]):
        for b in (right, right.swapaxes(-1, -2).copy().swapaxes(-1, -2)):
            arrays = (ops.asarray(x.swapaxes(-1, -2).copy()).swapaxes(-1, -2) for x in (a, b))
            bound = 1e-12 if dtype is np.float64 else 1e-5
            np.testing.assert_allclose(ops.to_numpy(blas.multiply_all(*arrays)), a @ b, rtol=bound, atol=bound)
            arrays = (ops.asarray(np.ascontiguousarray(x)) for x in (a, b))
            np.testing.assert_allclose(ops.to_numpy(blas.multiply_all(*arrays)), a @ b, rtol=bound, atol=bound)


def test_empty_products_are_zeros(ops: Any):
    a, b = (ops.asarray(np.ones(shape, np.float32)) for shape in ((2, 3, 0), (2, 0, 4)))
    np.testing.assert_array_equal(ops.to_numpy(ops.blas.multiply_all(a, b)), np.zeros((2, 3, 4)))
    assert ops.blas.multiply_all(a[:0], b[:0]).shape == (0, 3, 4)
    np.testing.assert_array_equal(ops.to_numpy(ops.blas.multiply(a[0], b[0])), np.zeros((3, 4)))


def test_the_workspace_is_set_after_each_new_stream_and_each_thread_has_a_handle(ops: Any, monkeypatch: Any):
    worker = ops.for_worker(0)
    library, calls = ops.library.cublas, []
    for name in ("cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2"):
        monkeypatch.setattr(library, name, recorded(calls, name, getattr(library, name)), raising=False)
    x = ops.asarray(np.eye(3, dtype=np.float32))

    def multiply(times: int = 2) -> None:
        for _ in range(times):
            worker.blas.multiply(x, x)

    streams = [emulated_cupy.Stream() for _ in range(2)]
    for stream in (*streams, streams[1]):
        with stream:
            multiply()
    setting = ["cublasSetStream_v2", "cublasSetWorkspace_v2"]
    assert calls == ["cublasCreate_v2", *setting, *setting]
    calls.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(multiply).result(60)
    assert calls == ["cublasCreate_v2", *setting]


def recorded(calls: list[str], name: str, function: Any) -> Any:
    """Return the function, which adds its name to ``calls``."""

    def call(*arguments: Any) -> Any:
        calls.append(name)
        return function(*arguments)

    return call


def test_a_product_that_cublas_refuses_is_an_error(ops: Any):
    with pytest.raises(RuntimeError, match=r"cublasGemmEx returned status 7 \(cublasStatus_t\)"):
        ops.blas._cublas.gemm(0, 0, 2, 2, 2, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 68, -1)
