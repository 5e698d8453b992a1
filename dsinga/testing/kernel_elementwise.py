"""The kernel contract for activations, sums, products, softmax and losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_cases import BATCHES, CHANNELS, LAYOUTS, MATRIX_LAYOUTS, SEEDS, LayoutChecks, given, normal
from dsinga.testing.kernel_formulas import assert_close, assert_gradient


class ElementwiseKernels(LayoutChecks):
    """Checks of kernels that treat each number, or each row of a matrix, by itself."""

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
