"""Convolution and pooling over steps: sequences that end, and labels and codes that are refused."""

import re
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from tests.support.layer_cases import BATCH, context
from tests.support.refusals import refused

NUMPY = BACKENDS["numpy"]()
STEPS, FEATURES = 7, 4
SEQUENCES = (BATCH, STEPS, FEATURES)
ENDS = np.array([7, 1, 4, 0, 2])
LABELS = np.where(np.arange(STEPS) < ENDS[:, None], 1, -1)
CONVOLUTIONS: list[dict[str, Any]] = [{}, {"kernel": 4, "same": True}, {"kernel": 2, "stride": 3, "pad": 1}]


def window_layer(kind: str, settings: dict[str, Any], *, with_lengths: bool = True, steps: int = STEPS) -> Layer:
    field = "pooling1d_conf" if kind == "kPooling1D" else "convolution1d_conf"
    fields = {"num_filters": 2, **settings} if kind == "kConvolution1D" else settings
    shapes = [(BATCH, steps, FEATURES), *[(BATCH, steps)] * with_lengths]
    return LayerCase(kind, shapes, {field: fields}, classes=3, steps=steps).layer()


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape)


class TestConvolution1D:
    @pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
    def test_a_sequence_gives_what_it_gives_alone(self, settings: dict[str, Any]):
        """Whatever stands after its end; a sequence shorter than the kernel is padded with zeros up to it."""
        layer, x = window_layer("kConvolution1D", settings), numbers(*SEQUENCES)
        params = [numbers(*spec.shape) for spec in layer.params]
        output = layer.compute_feature(params, [x, LABELS], context(NUMPY))
        for row, length in enumerate(ENDS):
            count = 0
            if length:
                alone = window_layer(
                    "kConvolution1D", settings, with_lengths=False, steps=max(length, layer.windows.kernel)
                )
                padded = np.zeros((1, max(length, layer.windows.kernel), FEATURES))
                padded[:, :length] = x[row, :length]
                expected = alone.compute_feature(params, [padded], context(NUMPY)).feature[0]
                count = int(layer.windows.count(length))
                np.testing.assert_allclose(output.feature[row, :count], expected[:count], rtol=1e-9, atol=1e-12)
            assert not output.feature[row, count:].any()
            np.testing.assert_array_equal(output.labels[row], [0] * count + [-1] * (layer.shape[1] - count))


POOLS = {
    "MAX": lambda steps: steps.max(axis=0),
    "AVG": lambda steps: steps.mean(axis=0),
    "SUM": lambda steps: steps.sum(axis=0),
    "FIRST": lambda steps: steps[0],
    "LAST": lambda steps: steps[-1],
    "ENDS": lambda steps: np.concatenate([steps[-1, :2], steps[0, 2:]]),
}


class TestPooling1D:
    @pytest.mark.parametrize("backend", ["numpy", "onednn"])
    @pytest.mark.parametrize("settings", [{}, {"kernel": 3}, {"kernel": 3, "stride": 2}], ids=str)
    @pytest.mark.parametrize("pool", POOLS)
    def test_only_steps_before_the_end_count(self, pool: str, settings: dict[str, Any], backend: str):
        try:
            ops = BACKENDS[backend]()
        except UserError as error:
            pytest.skip(str(error))
        layer, x = window_layer("kPooling1D", {"pool": pool, **settings}), numbers(*SEQUENCES).astype(np.float32)
        output = layer.compute_feature([], [ops.asarray(x), LABELS], context(ops))
        kernel = settings.get("kernel", STEPS)
        expected = np.zeros((BATCH, int(layer.windows.count(STEPS)), FEATURES))
        for row, length in enumerate(ENDS):
            for window in range(int(layer.windows.count(length))):
                start = window * layer.windows.stride
                expected[row, window] = POOLS[pool](x[row, start : min(start + kernel, length)])
        np.testing.assert_allclose(output.feature, expected.reshape(layer.shape), rtol=1e-5, atol=1e-6)
        (dx, _), _ = layer.compute_gradient(
            [], [x, LABELS], output, np.ones(layer.shape, "f"), [True, False], context(ops)
        )
        assert not dx[LABELS < 0].any()
        counted = layer.windows.count(ENDS) if settings else ENDS > 0
        if pool != "SUM":  # each window that counts gives its gradient of 1 for each feature to its steps
            np.testing.assert_allclose(dx.sum(axis=(1, 2)), counted * FEATURES, rtol=1e-5)


class TestLengths:
    def test_a_label_after_the_end_is_refused(self):
        labels = LABELS.copy()
        labels[2] = [1, -1, 1, -1, -1, -1, -1]
        layer = window_layer("kPooling1D", {})
        with pytest.raises(UserError, match=r"row 2 that 'source1' gives has -1 before its last step: 1, -1, 1"):
            layer.compute_feature([], [numbers(*SEQUENCES), labels], context(NUMPY))


class TestSequenceLength:
    layer = LayerCase("kSequenceLength", [(BATCH, 3)]).layer()

    def test_codes_are_feature_and_labels(self):
        codes = np.array([[3, 0, -1], [1, 2, 3], [0, -1, -1], [9, 9, 9], [4, 4, -1]], np.int32)
        output = self.layer.compute_feature([], [codes], context(NUMPY))
        np.testing.assert_array_equal(output.feature, codes)
        np.testing.assert_array_equal(output.labels, codes)
        assert output.labels.dtype == np.int64

    def test_steps_of_the_code_of_the_end_are_left_out(self):
        conf = {"sequencelength_conf": {"end": 0, "anywhere": True}}
        layer = LayerCase("kSequenceLength", [(2, 4)], conf).layer()
        codes = np.array([[0, 3, 0, 4], [5, -1, -1, -1]], np.int32)
        output = layer.compute_feature([], [codes], context(NUMPY))
        np.testing.assert_array_equal(output.labels, [[3, 4, -1, -1], [5, -1, -1, -1]])
        np.testing.assert_array_equal(output.feature, output.labels)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ([-1, -1, -1], "row 1 of the batch is an empty sequence, -1 throughout; leave such records out"),
            ([1, -1, 2], "row 1 that 'source0' gives has -1 before its last step: 1, -1, 2"),
            ([1, 0.5, 2], "gives numbers that are not codes"),
        ],
    )
    def test_other_codes_are_refused(self, row: list[float], message: str):
        codes = np.array([[3, 0, -1], row, [0, -1, -1], [9, 9, 9], [4, 4, -1]])
        refused(lambda: self.layer.compute_feature([], [codes], context(NUMPY)), re.escape(message))


class TestCosineSimilarity:
    def test_a_row_of_zeros_has_similarity_and_gradient_that_are_finite(self):
        layer = LayerCase("kCosineSimilarity", [(BATCH, 4)] * 2).layer()
        sources = [np.zeros((BATCH, 4), np.float32), np.ones((BATCH, 4), np.float32)]
        output = layer.compute_feature([], sources, context(NUMPY))
        assert not output.feature.any()
        grad = np.ones((BATCH, 1), np.float32)
        gradients, _ = layer.compute_gradient([], sources, output, grad, [True, True], context(NUMPY))
        assert all(np.isfinite(gradient).all() for gradient in gradients)
