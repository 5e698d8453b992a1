"""The cupy backend's calls of cuBLAS, made to a small C library with cuBLAS's prototypes (emulation/cublas.cpp)."""

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
        device, ops.asarray(np.ascontiguousarray(numbers.T)).T, wide_device[:rows, 1 : columns + 1],
        transposed.T[:rows, 1 : columns + 1], ops.asarray(tall)[::2, ::2],
    ]  # fmt: skip


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


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_bias_and_a_rectifier_are_part_of_the_product(ops: Any, precision: str):
    """Numbers are those of numpy, whatever the layouts; memory that is not aligned is multiplied by cuBLAS."""
    worker, rng = ops.for_worker(0, precision), np.random.default_rng(0)
    bias = rng.integers(-8, 8, 8).astype(np.float32)
    placed = ops.asarray(np.concatenate([bias, bias]))
    for a in matrices(ops, 4, 16, np.float32):
        for w in matrices(ops, 8, 16, np.float32):
            expected = ops.to_numpy(a) @ ops.to_numpy(w).T + bias
            for transpose, weight in ((False, w), (True, w.T)):
                for start in (0, 3):
                    b = placed[start : start + 8]
                    wanted = expected - bias + ops.to_numpy(b)
                    y = worker.inner_product(a, weight, b, transpose)
                    np.testing.assert_array_equal(ops.to_numpy(y), wanted)
                    y = worker.rectified_inner_product(a, weight, b, transpose)
                    np.testing.assert_array_equal(ops.to_numpy(y), np.maximum(wanted, 0))


def products(worker: Any, *arrays: Any) -> list[str]:
    """Return the launches of a rectified inner product, and check its numbers."""
    emulated_cupy.log.clear()
    y = worker.rectified_inner_product(*arrays)
    names = [name for _, what, name in emulated_cupy.log if what == "kernel"]
    x, w, b = (np.asarray(array, np.float32) for array in arrays)
    np.testing.assert_array_equal(np.asarray(y), np.maximum(x @ w.T + b, 0))
    return names


def aligned_arrays(ops: Any, inputs: int) -> list[Any]:
    shapes = (4, inputs), (8, inputs), (8,)
    return [ops.asarray(np.arange(np.prod(shape)).reshape(shape).astype(np.float32) % 5 - 2) for shape in shapes]


def test_products_with_bias_take_one_launch_and_fall_back_to_those_of_cublas(ops: Any, monkeypatch: Any):
    lt = "gemm with bias"
    x, w, b = aligned_arrays(ops, 16)
    assert products(ops.for_worker(0, "tf32"), x, w, b) == [lt]
    assert products(ops.for_worker(0, "bf16"), x, w, b) == ["to_bfloat16", "to_bfloat16", lt]
    separate = ["fill_rows", "gemm 77", "relu"]
    assert products(ops.for_worker(0), x, w, b) == ["fill_rows", "gemm 68", "relu"]  # whose sums are exact
    worker = ops.for_worker(0, "tf32")
    assert products(worker, *aligned_arrays(ops, 13)) == separate  # of which the library has no algorithm
    shifted = ops.asarray(np.concatenate([np.zeros(1, np.float32), np.asarray(b)]))[1:]
    assert products(worker, x, w, shifted) == separate
    assert products(worker, x, w, b) == [lt]
    module = ops.modules["dsinga.addons.gpu.cupy.cublaslt"]
    monkeypatch.setattr(module, "find_library", lambda: None)  # an older CUDA
    assert products(worker, x, w, b) == separate


def test_the_heuristic_is_asked_once_for_a_shape_in_a_thread(ops: Any, monkeypatch: Any):
    library, calls, name = ops.library.cublaslt, [], "cublasLtMatmulAlgoGetHeuristic"
    monkeypatch.setattr(library, name, recorded(calls, name, getattr(library, name)), raising=False)
    worker, arrays = ops.for_worker(0, "tf32"), aligned_arrays(ops, 16)
    for _ in range(3):
        products(worker, *arrays)
        products(worker, *aligned_arrays(ops, 13))
    assert len(calls) == 2
    with ThreadPoolExecutor(1) as pool:
        pool.submit(products, worker, *arrays).result(60)
    assert len(calls) == 3


def test_a_failing_product_with_bias_is_computed_by_cublas(ops: Any, monkeypatch: Any):
    monkeypatch.setattr(ops.library.cublaslt, "cublasLtMatmul", lambda *arguments: 15)
    worker, arrays = ops.for_worker(0, "tf32"), aligned_arrays(ops, 16)
    for _ in range(2):
        assert products(worker, *arrays) == ["fill_rows", "gemm 77", "relu"]
