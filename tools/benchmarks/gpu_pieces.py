"""Measure the microseconds that the host needs for each call of an iteration.

``python -m tools.benchmarks.gpu_pieces`` prints a JSON object: by piece, the median over ten times a hundred calls.
The device is idle before each hundred, so that the host never waits for a full queue.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsinga.ops import get_ops

CALLS, REPETITIONS = 100, 10


def pieces(ops: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each piece and a function that calls it."""
    xp = ops.xp
    x, w, y = (xp.ones(shape, np.float32) for shape in ((128, 64), (32, 64), (128, 32)))
    image, filters = ops.images(xp.ones((8, 16, 16, 16), np.float32)), xp.ones((16, 16, 3, 3), np.float32)
    yield "current stream", lambda: xp.cuda.get_current_stream().ptr
    yield "empty", lambda: xp.empty((128, 64), np.float32)
    yield "empty, transposed", lambda: xp.empty((8, 16, 16, 16), np.float32).transpose(0, 3, 1, 2)
    yield "view of rows", lambda: x[3:9]
    yield "reshape", lambda: x.reshape(-1)
    yield "address", lambda: x.data.ptr
    yield "fill by 0", lambda: y.fill(0)
    yield "add of CuPy", lambda: xp.add(x, x, out=x)
    yield "sum of CuPy", lambda: x.sum(axis=0)
    yield "relu", lambda: ops.relu(x)
    yield "relu of an image", lambda: ops.relu(image)
    yield "product", lambda: ops.blas.multiply(x, w.T, y)
    rounding = ops.for_worker(0, "bf16")
    yield "product, bf16", lambda: rounding.blas.multiply(x, w.T, y)
    yield "convolution", lambda: ops.convolution(image, filters, None, (1, 1), (1, 1))


def products(ops: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the calls of cuBLAS below dsinga's products, and CuPy's for comparison."""
    xp = ops.xp
    x, w, y = (xp.ones(shape, np.float32) for shape in ((128, 64), (32, 64), (128, 32)))
    ops.blas.multiply(x, w.T, y)
    from dsinga.addons.gpu.cupy.cublas import find_library  # there is a device now
    from dsinga.addons.gpu.cupy.products import _KINDS

    cublas = xp.cuda.cublas
    blas, handle = find_library(), ops.blas._cublas._thread.handle
    kind, zero, one, _ = _KINDS[x.dtype]
    arguments = (1, 0, 32, 128, 64, one, w.data.ptr, kind, 64, x.data.ptr, kind, 64, zero, y.data.ptr, kind, 32)
    tail = cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT
    yield "cublasGemmEx by ctypes", lambda: blas.cublasGemmEx(handle, *arguments, *tail)
    device = xp.cuda.device
    yield "cublasGemmEx by CuPy", lambda: cublas.gemmEx(device.get_cublas_handle(), *arguments, *tail)
    stream = xp.cuda.get_current_stream().ptr
    yield "cublasSetStream", lambda: blas.cublasSetStream_v2(handle, stream)
    ops.blas._cublas._thread.stream = -1  # cuBLAS has forgotten the workspace


def launches(ops: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a launch by CuPy, and one by the driver's function with arguments that are packed once."""
    from dsinga.addons.gpu.cupy.elementwise import _elementwise  # there is a device now

    x = ops.xp.ones((128, 64), np.float32)
    result, count = ops.xp.empty_like(x), x.size
    kernel = _elementwise._kernel("relu", x.dtype)
    yield "kernel of CuPy", lambda: kernel((32,), (256,), (x, result, 0.0, count))
    function = getattr(getattr(kernel, "kernel", kernel), "ptr", None)
    if function is None:
        return
    values = [
        ctypes.c_void_p(x.data.ptr),
        ctypes.c_void_p(result.data.ptr),
        ctypes.c_double(0),
        ctypes.c_longlong(x.size),
    ]
    packed = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
    driver, stream = ctypes.CDLL("libcuda.so.1"), ops.xp.cuda.get_current_stream().ptr
    launch, handle = driver.cuLaunchKernel, ctypes.c_void_p(function)
    launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    at = ctypes.addressof(packed)
    yield "cuLaunchKernel by ctypes", lambda: launch(handle, 32, 1, 1, 256, 1, 1, 0, stream, at, None)
    addresses = values[:2]

    def repack() -> None:
        addresses[0].value, addresses[1].value = x.data.ptr, result.data.ptr
        launch(handle, 32, 1, 1, 256, 1, 1, 0, stream, at, None)

    yield "cuLaunchKernel by ctypes, two addresses set", repack


def executions(ops: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the executions of cuDNN's plan of the convolution in each form."""
    image, filters = ops.images(ops.xp.ones((8, 16, 16, 16), np.float32)), ops.xp.ones((16, 16, 3, 3), np.float32)
    ops.convolution(image, filters, None, (1, 1), (1, 1))
    thread, frontend = ops.plans._thread, ops.plans._frontend
    runners = ((problem, runner) for problem, runner in thread.runners.items() if not isinstance(runner, str))
    problem, runner = next(runners, (None, None))
    if runner is None:
        return
    arrays = [ops.xp.ones(shape, np.float32) for shape in (problem.x, problem.w, problem.y)]
    addresses = [array.data.ptr for array in arrays]
    yield "plan, by addresses" if runner._fast else "plan, no fast form", lambda: runner.run(*addresses)
    pointers = dict(zip(runner._plan.tensors, addresses, strict=True))
    graph, workspace, handle = runner._plan.graph, runner._workspace.data.ptr, thread.handle
    yield "plan, by a dict", lambda: graph.execute(pointers, workspace, handle=handle)
    stream = ops.xp.cuda.get_current_stream().ptr
    yield "cuDNN's stream, unchanged", lambda: frontend.set_stream(handle=handle, stream=stream)
    del arrays


def microseconds(ops: Any, call: Callable[[], Any]) -> float:
    """Return the host's time of a call."""
    times = []
    for _ in range(REPETITIONS + 1):
        ops.streams.compute.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(1e6 * (time.perf_counter() - started) / CALLS)
    return statistics.median(times[1:])


def turn() -> dict[str, Any]:
    """Return the microseconds of each piece, or the reason why it is missing."""
    ops: Any = get_ops("cupy").for_worker(0)
    ops.enter()
    figures: dict[str, Any] = {}
    for family in (pieces, products, launches, executions):
        try:
            for name, call in family(ops):
                figures[name] = microseconds(ops, call)
        except Exception as error:  # one family must not hide the others
            figures[family.__name__] = {"failed": f"{type(error).__name__}: {error}"}
    return figures


if __name__ == "__main__":
    print(json.dumps(turn()))
