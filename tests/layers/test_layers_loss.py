"""Losses, accuracy and sorting: figures computed by hand, limits, ties, and refused labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.job import LayerConf
from dsinga.layers import Layer
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from tests.support.layer_cases import context

CONTEXT = context(BACKENDS["numpy"]())


def make(kind: str, *shapes: tuple[int, ...], **conf: Any) -> Layer:
    conf = {"name": "loss", "srclayers": ["ip", "data"][: len(shapes)], **conf}
    return lookup("layer", kind)(LayerConf(type=kind, **conf), shapes)


def test_the_loss_of_equal_scores_is_the_logarithm_of_the_number_of_classes():
    layer = make("kSoftmaxLoss", (5, 10), (5, 10), softmaxloss_conf={"scale": 3, "topk": 2})
    labels = np.array([0, 1, 2, 3, 9])
    output = layer.compute_feature([], [np.zeros((5, 10), np.float32), labels], CONTEXT)
    assert output.metrics["loss"] == (pytest.approx(3 * 5 * math.log(10)), 5)
    assert output.metrics["accuracy"] == (2, 5)  # ties go by index: 0 and 1 are the top two
    (grad, nothing), _ = layer.compute_gradient([], [output.feature, labels], output, None, [True, False], CONTEXT)
    assert nothing is None
    np.testing.assert_allclose(grad, (np.full((5, 10), 0.1) - np.eye(10)[labels]) * 3 / 5, rtol=1e-5)


def test_the_loss_of_probability_0_is_that_of_the_smallest_float():
    layer = make("kSoftmaxLoss", (1, 2), (1, 2))
    output = layer.compute_feature([], [np.array([[0, 1000]], np.float32), np.array([0])], CONTEXT)
    assert output.metrics["loss"][0] == pytest.approx(-math.log(1.1754943508e-38))


@pytest.mark.parametrize("label", [-1, 4, 10**9])
@pytest.mark.parametrize("kind", ["kSoftmaxLoss", "kAccuracy"])
def test_a_label_that_is_no_class_is_refused(kind: str, label: int):
    layer = make(kind, (3, 4), (3, 4))
    with pytest.raises(ValueError, match=f"layer 'loss': label {label} is none of its 4 classes") as raised:
        layer.compute_feature([], [np.zeros((3, 4), np.float32), np.array([0, label, 3])], CONTEXT)
    assert "0 to 3" in str(raised.value)


def test_the_euclidean_loss_has_no_factor_of_one_half():
    layer = make("kEuclideanLoss", (5, 2), (5, 1, 2))
    first, second = np.full((5, 2), 3.0, np.float32), np.full((5, 1, 2), 1.0, np.float32)
    output = layer.compute_feature([], [first, second], CONTEXT)
    assert output.metrics["loss"] == (5 * 2 * 4, 5)
    (dx, dy), _ = layer.compute_gradient([], [first, second], output, None, [True, True], CONTEXT)
    assert np.array_equal(dx, np.full((5, 2), np.float32(2 / 5) * 2))
    assert np.array_equal(dy, -np.full((5, 1, 2), np.float32(2 / 5) * 2))


def test_the_scale_of_a_distance_scales_its_loss_and_both_gradients():
    layer = make("kEuclideanLoss", (5, 2), (5, 2), euclideanloss_conf={"scale": 0.5})
    first, second = np.full((5, 2), 3.0, np.float32), np.full((5, 2), 1.0, np.float32)
    output = layer.compute_feature([], [first, second], CONTEXT)
    assert output.metrics["loss"] == (5 * 2 * 2, 5)
    (dx, dy), _ = layer.compute_gradient([], [first, second], output, None, [True, True], CONTEXT)
    np.testing.assert_allclose([dx, dy], [np.full((5, 2), 0.4), np.full((5, 2), -0.4)], rtol=1e-6)


def test_the_cross_entropy_of_large_numbers_is_finite_and_exact():
    layer = make("kSigmoidCrossEntropyLoss", (5, 2), (5, 2))
    x = np.array([[500, -500], [500, -500], [0, 0], [90, -90], [0, 0]], np.float32)
    target = np.array([[1, 0], [0, 1], [0.5, 1], [1, 0], [0, 0]], np.float32)
    output = layer.compute_feature([], [x, target], CONTEXT)
    assert output.metrics["loss"] == (pytest.approx(1000 + 4 * math.log(2)), 5)
    (dx, dtarget), _ = layer.compute_gradient([], [x, target], output, None, [True, True], CONTEXT)
    np.testing.assert_allclose(dx[1], [0.2, -0.2])
    np.testing.assert_array_equal(dtarget, x * np.float32(-0.2))


@pytest.mark.parametrize(("norm", "lost"), [("L1", 0.5 + 1.5), ("L2", 0.25 + 2.25)])
def test_a_kept_margin_has_no_loss(norm: str, lost: float):
    layer = make("kHingeLoss", (5, 3), (5, 3), hingeloss_conf={"norm": norm, "scale": 2})
    scores = np.array([[2, 1, 0]] * 4 + [[1.0, 1.5, 0.5]], np.float32)
    output = layer.compute_feature([], [scores, np.array([0, 0, 0, 0, 0])], CONTEXT)
    assert output.metrics == {"loss": (2 * lost, 5), "accuracy": (4, 5)}
    (dx, _), _ = layer.compute_gradient([], [scores, np.zeros(5, int)], output, None, [True, False], CONTEXT)
    assert not dx[:4].any()
    assert dx[4].sum() == pytest.approx(0, abs=1e-6)


def test_sorting_is_descending_with_ties_by_index():
    scores = np.array([[0.1, 0.5, 0.5, 0.3], [2, 2, 2, 2], [4, 3, 2, 1]], np.float32)
    for topk, expected in ((1, [[1], [0], [0]]), (3, [[1, 2, 3], [0, 1, 2], [0, 1, 2]])):
        layer = make("kArgSort", (3, 4), argsort_conf={"topk": topk})
        assert layer.compute_feature([], [scores], CONTEXT).feature.tolist() == expected


few = st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0])  # so that ties are frequent


@given(
    scores=arrays(np.float32, (6, 5), elements=few),
    labels=arrays(int, 6, elements=st.integers(0, 4)),
    topk=st.integers(1, 5),
)
def test_a_hit_is_a_label_among_the_sorted_indices(scores: np.ndarray, labels: np.ndarray, topk: int):
    layer = make("kAccuracy", (6, 5), (6, 5), argsort_conf={"topk": topk})
    output = layer.compute_feature([], [scores, labels], CONTEXT)
    hits = (output.feature == labels[:, None]).any(axis=1).sum()
    assert output.metrics["accuracy"] == (hits, 6)
