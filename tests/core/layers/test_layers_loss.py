"""Losses, accuracy and sorting: limits, ties, and refused labels; test_layers_torch.py has the figures."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.base.errors import UserError
from dsinga.job import NetConf, Phase
from dsinga.layers import RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.ops import BACKENDS
from dsinga.training import bp, forward, initial_values
from tests.support.layer_cases import context, layer_of
from tests.support.training_cases import layer as conf

CONTEXT = context(BACKENDS["numpy"]())


@pytest.mark.parametrize("label", [-1, 4, 10**9])
@pytest.mark.parametrize("kind", ["kSoftmaxLoss", "kAccuracy", "kHingeLoss", "kClassSoftmaxLoss", "kSampledLoss"])
def test_a_label_that_is_no_class_is_refused(kind: str, label: int):
    words = {"classsoftmaxloss_conf": {"vocab_size": 4}, "sampledloss_conf": {"vocab_size": 4}}
    layer = layer_of(kind, (3, 4), (3,), **words)
    params = [np.zeros(spec.shape, np.float32) for spec in layer.params]
    with pytest.raises(ValueError, match=f"layer 'layer': label {label} is none of its 4 classes .0 to 3"):
        layer.compute_feature(params, [np.zeros((3, 4), np.float32), np.array([0, label, 3])], CONTEXT)


def test_the_cross_entropy_of_large_numbers_is_finite_and_exact():
    layer = layer_of("kSigmoidCrossEntropyLoss", (5, 2), (5, 2))
    x = np.array([[500, -500], [500, -500], [0, 0], [90, -90], [0, 0]], np.float32)
    target = np.array([[1, 0], [0, 1], [0.5, 1], [1, 0], [0, 0]], np.float32)
    output = layer.compute_feature([], [x, target], CONTEXT)
    assert output.metrics["loss"] == (pytest.approx(1000 + 4 * math.log(2)), 5)
    (dx, dtarget), _ = layer.compute_gradient([], [x, target], output, None, [True, True], CONTEXT)
    np.testing.assert_allclose(dx[1], [0.2, -0.2])
    np.testing.assert_array_equal(dtarget, x * np.float32(-0.2))


def test_sorting_is_descending_with_ties_by_index():
    scores = np.array([[0.1, 0.5, 0.5, 0.3], [2, 2, 2, 2], [4, 3, 2, 1]], np.float32)
    for topk, expected in ((1, [[1], [0], [0]]), (3, [[1, 2, 3], [0, 1, 2], [0, 1, 2]])):
        layer = layer_of("kArgSort", (3, 4), argsort_conf={"topk": topk})
        assert layer.compute_feature([], [scores], CONTEXT).feature.tolist() == expected


few = st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0])  # so that ties are frequent


@given(
    scores=arrays(np.float32, (6, 5), elements=few),
    labels=arrays(int, 6, elements=st.integers(0, 4)),
    topk=st.integers(1, 5),
)
def test_a_hit_is_a_label_among_the_sorted_indices(scores: np.ndarray, labels: np.ndarray, topk: int):
    layer = layer_of("kAccuracy", (6, 5), (6, 5), argsort_conf={"topk": topk})
    output = layer.compute_feature([], [scores, labels], CONTEXT)
    hits = (output.feature == labels[:, None]).any(axis=1).sum()
    assert output.metrics["accuracy"] == (hits, 6)


@pytest.mark.parametrize("kind", ["kSigmoidCrossEntropyLoss", "kFocalLoss"])
@pytest.mark.parametrize("make_ops", [BACKENDS["numpy"], BACKENDS["onednn"]])
@pytest.mark.parametrize("phase", [Phase.kTrain, Phase.kVal, Phase.kTest])
def test_answers_other_than_0_to_1_are_refused_on_every_backend(kind, make_ops, phase):
    assert_other_answers_are_refused(kind, make_ops, phase)


def assert_other_answers_are_refused(kind, make_ops, phase):
    layers = [
        conf("data", "kRecordInput"), conf("scores", "kInnerProduct", "data", innerproduct_conf={"num_output": 1}),
        conf("target", "kLabel", "data"), conf("loss", kind, "scores", "target"),
    ]  # fmt: skip
    net, ctx = create_net(NetConf(layer=layers), phase, {"data": RecordInfo((5,), 4)}), context(make_ops(), phase)
    ctx = replace(ctx, rows=Rows(0, 4, 4))
    params = {name: ctx.ops.asarray(value) for name, value in initial_values(net.params, 0).items()}

    def run(labels: np.ndarray) -> dict:
        records = {"data": Records(np.ones((4, 5), np.float32), labels)}
        if phase is Phase.kTrain:
            return bp(net, params, records, ctx, lambda name, gradient: None)
        return forward(net, params, records, ctx)[1]

    assert math.isfinite(run(np.array([0, 1, 1, 0]))["loss"][0])
    for wrong in ([0, 1, 2, 0], [1, 1, -1, 0], [0, 1, np.nan, 1]):
        with pytest.raises(UserError, match=f"'target' gives {wrong[2]:g} in row 2 of the batch"):
            run(np.array(wrong, np.float32))
