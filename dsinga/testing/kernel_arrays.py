"""Kernel tests for arrays, elementwise kernels, random numbers, and threads that compute at once."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from math import prod
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from dsinga.ops import Ops
from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_backend import (
    BATCHES,
    CHANNELS,
    LAYOUTS,
    MATRIX_LAYOUTS,
    SEEDS,
    KernelBackend,
    LayoutChecks,
    given,
    normal,
)
from dsinga.testing.kernel_formulas import assert_close, assert_gradient

WORKERS = 3
WAIT_SECONDS = 60.0


def small_net(ops: Ops, dtype: Any, batch: int, channels: int) -> list[Any]:
    """Run every family of kernels once, forward and backward, and return all results."""
    rng = np.random.default_rng([batch, channels])

    def random_array(*shape: int) -> Any:
        return ops.asarray(rng.standard_normal(shape).astype(dtype))

    x = ops.unflatten(random_array(batch, channels * 49), (batch, channels, 7, 7))
    w, b = random_array(16, channels, 3, 3), random_array(16)
    weights = random_array(10, 16 * 9)
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


class ArrayKernels(LayoutChecks):
    """Tests of conversions, random numbers and crops, and of several threads at once."""

    @given(
        shape=st.one_of(
            st.tuples(BATCHES, st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
            st.tuples(BATCHES, st.integers(1, 4), *[st.integers(1, 3)] * 3),
            st.tuples(BATCHES, CHANNELS),
        ),
        dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
        kinds=st.tuples(*[st.sampled_from(["none", "number", "channel", "record"])] * 2),
    )
    def test_images(self, backend: KernelBackend, shape: tuple[int, ...], dtype: Any, kinds: tuple[str, str]) -> None:
        rng = np.random.default_rng(7)
        records: np.ndarray = rng.integers(0, 256, shape).astype(dtype)

        def statistic(kind: str, low: float) -> Any:
            record = shape[1:]
            sizes = {"number": (), "channel": (record[0], *(1,) * (len(record) - 1)), "record": record}
            return None if kind == "none" else rng.uniform(low, 100, sizes[kind])

        mean, std = statistic(kinds[0], 0), statistic(kinds[1], 1)
        for scale in (1.0, 1 / 128):
            result = backend.host(backend.ops.images(records, scale, mean, std))
            expected = (records - (0.0 if mean is None else mean)) / (1 if std is None else std) * scale
            assert_close(result, expected, np.float32)
            if len(shape) in (4, 5):
                self.assert_image(result)
        assert not np.shares_memory(result, records)

    @given(
        shape=st.tuples(BATCHES, CHANNELS, *[st.integers(1, 5)] * 2)
        | st.tuples(BATCHES, CHANNELS, *[st.integers(1, 3)] * 3),
        layout=LAYOUTS,
    )
    def test_flatten_gives_the_logical_order(self, backend: KernelBackend, shape: tuple[int, ...], layout: str) -> None:
        x = normal(1, *shape)
        flat = backend.run("flatten", backend.place(x, layout))
        np.testing.assert_array_equal(flat, x.astype(backend.dtype).reshape(shape[0], prod(shape[1:])))
        back = backend.run("unflatten", flat, shape)
        np.testing.assert_array_equal(back, x.astype(backend.dtype))
        self.assert_image(back)
        assert backend.run("flatten", flat).shape == flat.shape
        assert backend.run("unflatten", flat, flat.shape).shape == flat.shape

    def test_asarray_and_back(self, backend: KernelBackend) -> None:
        values: np.ndarray = np.arange(6, dtype=backend.dtype).reshape(2, 3)
        np.testing.assert_array_equal(backend.ops.to_numpy(backend.ops.asarray(values)), values)
        np.testing.assert_array_equal(backend.ops.to_numpy(backend.ops.asarray([[1, 2]])), [[1, 2]])

    @given(
        key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
        first=st.integers(0, 2**20),
        step=st.integers(0, 2**40),
        rows=st.integers(0, 4),
        columns=st.integers(1, 40),
    )
    def test_random_numbers_are_those_of_numpy_to_the_bit(
        self, backend: KernelBackend, key: tuple[int, int], first: int, step: int, rows: int, columns: int
    ) -> None:
        width = -(-columns // 8)
        bits = np.random.Philox(key=np.array(key, np.uint64), counter=[first * width, 0, step, 0])
        words = bits.random_raw(4 * width * rows).astype("<u8").view("<u4").reshape(rows, 8 * width)
        uniform = backend.ops.to_numpy(backend.ops.uniform(key, first, step, rows, columns))
        assert uniform.dtype == np.float32
        np.testing.assert_array_equal(uniform, ((words >> 8) * 2.0**-24)[:, :columns].astype(np.float32))

    @pytest.mark.parametrize("pad", [0, 2])
    @pytest.mark.parametrize("layout", ["rows", "channels last"])
    def test_a_window_is_cut_out_of_each_image(self, backend: KernelBackend, pad: int, layout: str) -> None:
        images = np.random.default_rng(5).normal(size=(3, 2, 4, 5))
        tops, lefts, mirrored = [0, 1, 2 * pad], [1, 2 * pad, 0], [False, True, True]
        crops = backend.host(backend.ops.crop(backend.place(images, layout), tops, lefts, mirrored, (3, 4), pad))
        padded = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = [
            padded[row, :, top : top + 3, left : left + 4]
            for row, (top, left) in enumerate(zip(tops, lefts, strict=True))
        ]
        expected = np.stack(
            [window[..., ::-1] if flip else window for window, flip in zip(windows, mirrored, strict=True)]
        )
        assert_close(crops, expected, backend.dtype)

    def test_numbers_are_read_in_their_order(self, backend: KernelBackend) -> None:
        total = backend.ops.xp.sum(backend.asarray(np.array([1.5, 2.0])))
        assert backend.ops.read([3, total, 0.25]) == [3.0, 3.5, 0.25]
        assert backend.ops.read([]) == []

    def test_several_threads_compute_the_bits_of_a_single_one(self, backend: KernelBackend) -> None:
        shapes = [(4, 3), (64, 16), (1, 5)]

        def all_shapes() -> list[list[np.ndarray]]:
            backend.ops.set_threads(1)
            return [backend.host(small_net(backend.ops, backend.dtype, *shape)) for shape in shapes]

        def worker(barrier: Barrier) -> list[Any]:
            barrier.wait(WAIT_SECONDS)
            return [all_shapes() for _ in range(5)]

        with ThreadPoolExecutor(1) as pool:
            expected = pool.submit(all_shapes).result(WAIT_SECONDS)
        with ThreadPoolExecutor(WORKERS) as pool:
            barrier = Barrier(WORKERS)
            futures = [pool.submit(worker, barrier) for _ in range(WORKERS)]
            for future in futures:
                for results in future.result(WAIT_SECONDS):
                    for arrays, expected_arrays in zip(results, expected, strict=True):
                        for array, expected_array in zip(arrays, expected_arrays, strict=True):
                            np.testing.assert_array_equal(array, expected_array)

    def test_results_outlive_later_calls(self, backend: KernelBackend) -> None:
        """A pool of result arrays does not reuse memory that a slice of a slice still uses."""
        results = small_net(backend.ops, backend.dtype, 64, 16)
        slices = [result.T[:1].T[..., :1] for result in results]
        copies = [backend.host(result).copy() for result in results]
        del results
        for seed in range(3):
            small_net(backend.ops, backend.dtype, 64, 16 + seed)
        for slice_, copy in zip(slices, copies, strict=True):
            np.testing.assert_array_equal(backend.host(slice_), copy.T[:1].T[..., :1])

    def test_the_number_of_cores_does_not_change_results(self, backend: KernelBackend) -> None:
        def run(count: int) -> list[np.ndarray]:
            backend.ops.set_threads(count)
            return backend.host(small_net(backend.ops, backend.dtype, 8, 16))

        with ThreadPoolExecutor(1) as pool:
            by_one, by_two = (pool.submit(run, count).result(WAIT_SECONDS) for count in (1, 2))
        for expected, array in zip(by_one, by_two, strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


class ElementwiseKernels(LayoutChecks):
    """Tests of kernels that compute each number, or each row of a matrix, separately."""

    @given(
        shape=st.one_of(
            st.tuples(BATCHES, CHANNELS, st.integers(1, 5), st.integers(1, 5)), st.tuples(BATCHES, CHANNELS)
        ),
        layouts=st.tuples(LAYOUTS, LAYOUTS),
        slope=st.sampled_from([0.0, 0.1]),
    )
    def test_elementwise_kernels(
        self, backend: KernelBackend, shape: tuple[int, ...], layouts: tuple[str, str], slope: float
    ) -> None:
        x = 3 * normal(1, *shape)
        x += 0.01 * np.sign(x)  # away from the corner of relu
        other = normal(2, *shape)
        first, second = backend.place(x, layouts[0]), backend.place(other, layouts[1])
        outer, inner = 1.7159047, 0.66666667
        activations: list[tuple[str, tuple[float, ...], Any]] = [
            ("gelu", (), lambda x: x * _normal_distribution(x)),
            ("silu", (), lambda x: x / (1 + np.exp(-x))),
            ("relu", (slope,), lambda x: np.where(x > 0, x, slope * x)),
            ("sigmoid", (), lambda x: 1 / (1 + np.exp(-x))),
            ("tanh", (), np.tanh),
            ("tanh", (outer, inner), lambda x: outer * np.tanh(inner * x)),
        ]
        for kernel, constants, formula in activations:
            y = backend.run(kernel, first, *constants)
            assert_close(y, formula(x), backend.dtype)
            self.assert_same_layout(y, first)
            dx = backend.run(f"{kernel}_grad", first if kernel in ("gelu", "silu") else y, second, *constants)
            # The derivative from a float32 output is off by the rounding of 1 - y², at most 6e-8 of the largest dy.
            slopes = (formula(x + 1e-6) - formula(x - 1e-6)) / 2e-6
            np.testing.assert_allclose(dx, slopes * other, rtol=1e-4, atol=1e-5 if other.size else 0)
            assert dx.dtype == backend.dtype
            self.assert_same_layout(dx, first)
        for kernel, expected in [("add", x + other), ("multiply", x * other)]:
            result = backend.run(kernel, first, second)
            assert_close(result, expected, backend.dtype)
            self.assert_same_layout(result, first)

    def test_activations_do_not_overflow(self, backend: KernelBackend) -> None:
        x = np.array([[-1e4, -100.0, 0.0, 100.0, 1e4]])
        np.testing.assert_allclose(backend.run("sigmoid", x), [[0, 0, 0.5, 1, 1]], atol=1e-30)
        np.testing.assert_allclose(backend.run("tanh", x), [[-1, -1, 0, 1, 1]])
        np.testing.assert_allclose(backend.run("softmax", x), [[0, 0, 0, 0, 1]], atol=1e-30)
        np.testing.assert_allclose(backend.run("gelu", x), [[0, 0, 0, 100, 1e4]], atol=1e-30)
        np.testing.assert_allclose(backend.run("silu", x), [[0, 0, 0, 100, 1e4]], atol=1e-30)
        np.testing.assert_allclose(backend.run("silu_grad", x, np.ones(x.shape)), [[0, 0, 0.5, 1, 1]], atol=1e-30)
        np.testing.assert_allclose(backend.run("gelu_grad", x, np.ones(x.shape)), [[0, 0, 0.5, 1, 1]], atol=1e-30)

    @given(rows=BATCHES, columns=st.integers(1, 40), layout=MATRIX_LAYOUTS)
    def test_softmax(self, backend: KernelBackend, rows: int, columns: int, layout: str) -> None:
        x, dy = 5 * normal(1, rows, columns), normal(2, rows, columns)
        y = backend.run("softmax", backend.place(x, layout))
        assert_close(y, formulas.softmax(x), backend.dtype)
        dx = backend.run("softmax_grad", y, backend.place(dy, layout))
        assert_gradient(lambda x: (formulas.softmax(x) * dy).sum(), x, dx, backend.dtype)

    @given(seed=SEEDS)
    def test_bernoulli(self, backend: KernelBackend, seed: int) -> None:
        rng = np.random.default_rng(seed)
        p: np.ndarray = rng.random((4, 30)).astype(backend.dtype)
        uniform = rng.random((4, 30), dtype=np.float32)
        p[0, :3] = 0, 1, uniform[0, 2]
        sample = backend.host(backend.ops.bernoulli(backend.ops.asarray(p), uniform))
        assert sample.dtype == p.dtype
        np.testing.assert_array_equal(sample, np.where(uniform < p, 1, 0))

    @given(ratio=st.floats(0, 0.99), seed=SEEDS)
    def test_dropout_mask(self, backend: KernelBackend, ratio: float, seed: int) -> None:
        uniform = np.random.default_rng(seed).random((4, 30), dtype=np.float32)
        uniform[0, 0] = ratio
        mask = backend.host(backend.ops.dropout_mask(uniform, ratio))
        assert mask.dtype == np.float32
        np.testing.assert_array_equal(mask, np.where(uniform >= np.float32(ratio), np.float32(1 / (1 - ratio)), 0))

    @given(batch=st.integers(0, 5), classes=st.sampled_from([1, 2, 5, 17]), topk=st.integers(1, 17), seed=SEEDS)
    def test_softmax_loss(self, backend: KernelBackend, batch: int, classes: int, topk: int, seed: int) -> None:
        rng, topk = np.random.default_rng(seed), min(topk, classes)
        x, labels = rng.normal(0, 3, (batch, classes)), rng.integers(0, classes, batch)
        p, loss, hits = backend.run("softmax_loss", x, labels, topk)
        expected = np.exp(x - x.max(axis=1, keepdims=True)) if batch else x
        expected /= expected.sum(axis=1, keepdims=True)
        assert_close(p, expected, backend.dtype)
        ranks = [
            np.flatnonzero(np.argsort(-row, kind="stable") == label)[0] for row, label in zip(x, labels, strict=True)
        ]
        read = backend.ops.read([loss, hits])
        assert read[0] == pytest.approx(-sum(np.log(expected[range(batch), labels])), rel=1e-4, abs=1e-5)
        assert read[1] == sum(rank < topk for rank in ranks)

        dx = backend.run("softmax_loss_grad", expected, labels, 0.25)
        assert_close(dx, (expected - np.eye(classes)[labels]) * 0.25, backend.dtype)
        smoothed = backend.run("softmax_loss_grad", expected, labels, 0.25, 0.2)
        target = 0.8 * np.eye(classes)[labels] + 0.2 / classes
        assert_close(smoothed, (expected - target) * 0.25, backend.dtype)

    def test_a_probability_of_0_costs_no_more_than_the_smallest_float32(self, backend: KernelBackend) -> None:
        _, loss, _ = backend.run("softmax_loss", np.array([[0.0, 2000.0]]), np.array([0]), 1)
        assert backend.ops.read([loss]) == [pytest.approx(-np.log(np.finfo(np.float32).tiny))]

    def test_ties_go_to_the_lower_index_and_nan_counts_against_the_label(self, backend: KernelBackend) -> None:
        scores = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1], [np.nan, 2, 1]], float)
        for labels, topk, expected in (
            ([0, 1, 2, 0], 1, 1),
            ([0, 1, 2, 0], 2, 3),
            ([0, 1, 2, 1], 2, 4),
            ([0, 1, 2, 0], 3, 4),
        ):
            hits = backend.run("hits", scores, np.array(labels), topk)
            assert backend.ops.read([hits]) == [expected]
        no_hits = backend.run("hits", np.full((2, 3), np.nan), np.array([0, 2]), 1)
        assert backend.ops.read([no_hits]) == [0]


_normal_distribution = np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))), otypes=[float])
