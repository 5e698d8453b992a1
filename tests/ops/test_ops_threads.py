"""Workers are threads of one process: each gets the bits that it would get alone, and keeps the results it holds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np

from dsinga.ops import Ops

WORKERS = 3
WAIT = 60.0


def small_net(ops: Ops, dtype: type, batch: int, channels: int) -> list[Any]:
    """Run every family of kernels once, forward and backward, and return all that comes out."""
    rng = np.random.default_rng([batch, channels])

    def normal(*shape: int) -> Any:
        return ops.asarray(rng.standard_normal(shape).astype(dtype))

    x = ops.unflatten(normal(batch, channels * 49), (batch, channels, 7, 7))
    w, b = normal(16, channels, 3, 3), normal(16)
    weights = normal(10, 16 * 9)
    convolved = ops.convolution(x, w, b, (1, 1), (1, 1))
    pooled, winners = ops.max_pool(convolved, (3, 3), (2, 2), (0, 0), True)
    active = ops.relu(pooled)
    normed, norms = ops.lrn(active, 3, 0.1, 0.75, 1.0, True)
    flat = ops.flatten(normed)
    y = ops.softmax(ops.tanh(ops.inner_product(flat, weights, None)))
    d_flat, d_weights, _ = ops.inner_product_grad(flat, weights, y, False, True, False)
    d_active = ops.lrn_grad(active, norms, ops.unflatten(d_flat, normed.shape), 3, 0.1, 0.75, 1.0)
    d_convolved = ops.max_pool_grad(convolved, winners, ops.relu_grad(active, d_active), (3, 3), (2, 2), (0, 0))
    grads = ops.convolution_grad(x, w, d_convolved, (1, 1), (1, 1), True, True)
    return [convolved, pooled, normed, y, d_weights, d_convolved, *grads]


def test_threads_at_once_compute_the_bits_of_one_alone(backend):
    shapes = [(4, 3), (64, 16), (1, 5)]

    def all_shapes() -> list[list[np.ndarray]]:
        backend.ops.set_threads(1)
        return [backend.host(small_net(backend.ops, backend.dtype, *shape)) for shape in shapes]

    def worker(barrier: Barrier) -> list[Any]:
        barrier.wait(WAIT)
        return [all_shapes() for _ in range(5)]

    with ThreadPoolExecutor(1) as pool:
        alone = pool.submit(all_shapes).result(WAIT)
    with ThreadPoolExecutor(WORKERS) as pool:
        barrier = Barrier(WORKERS)
        futures = [pool.submit(worker, barrier) for _ in range(WORKERS)]
        for future in futures:
            for rounds in future.result(WAIT):
                for results, expected in zip(rounds, alone, strict=True):
                    for result, right in zip(results, expected, strict=True):
                        np.testing.assert_array_equal(result, right)


def test_results_outlive_later_calls(backend):
    """The buffer pool may hand out only what nobody refers to any more, were it through a slice of a slice."""
    kept = small_net(backend.ops, backend.dtype, 64, 16)
    slices = [result.T[:1].T[..., :1] for result in kept]
    before = [backend.host(result).copy() for result in kept]
    del kept
    for seed in range(3):
        small_net(backend.ops, backend.dtype, 64, 16 + seed)
    for piece, whole in zip(slices, before, strict=True):
        np.testing.assert_array_equal(backend.host(piece), whole.T[:1].T[..., :1])


def test_the_number_of_cores_does_not_change_what_is_computed(backend):
    def run(count: int) -> list[np.ndarray]:
        backend.ops.set_threads(count)
        return backend.host(small_net(backend.ops, backend.dtype, 8, 16))

    with ThreadPoolExecutor(1) as pool:
        for one, two in zip(pool.submit(run, 1).result(WAIT), pool.submit(run, 2).result(WAIT), strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-4 * np.abs(one).max())
