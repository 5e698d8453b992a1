"""Weighted losses beside scikit-learn's figures, and weights of 0, 1 and 2 beside rows left out, once and twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.errors import UserError
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import Layer, RecordInfo
from dsinga.net import create_net
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from dsinga.testing.layer_cases import available_backends
from dsinga.testing.layer_passes import layer_context
from dsinga.training.metrics import read_metrics
from tests.support.training_cases import build, dense, layer

ROWS = 6
CONTEXT = layer_context(BACKENDS["numpy"](), ROWS)
weights_of_rows = arrays(np.float32, ROWS, elements=st.sampled_from([0.0, 0.25, 1.0, 3.0])).filter(np.any)
scores_of_rows = arrays(np.float32, (ROWS, 4), elements=st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0]))


def make(kind: str, *shapes: tuple[int, ...], **conf: Any) -> Layer:
    sources = ["ip", "data", "weights"][: len(shapes)]
    return lookup("layer", kind)(LayerConf(type=kind, name="loss", srclayers=sources, **conf), shapes)


def mean(metric: tuple[float, float]) -> float:
    return metric[0] / metric[1]


@given(scores=scores_of_rows, labels=arrays(int, ROWS, elements=st.integers(0, 3)), weights=weights_of_rows)
def test_a_weighted_softmax_loss_is_that_of_scikit_learn(scores, labels, weights):
    sklearn = pytest.importorskip("sklearn.metrics")
    loss = make("kSoftmaxLoss", (ROWS, 4), (ROWS,), (ROWS,))
    output = loss.compute_feature([], [scores, labels, weights], CONTEXT)
    expected = sklearn.log_loss(labels, output.feature, labels=range(4), sample_weight=weights, normalize=False)
    assert mean(output.metrics["loss"]) == pytest.approx(expected / ROWS, rel=1e-4)
    hits = sklearn.accuracy_score(labels, output.feature.argmax(axis=1), sample_weight=weights)
    assert mean(output.metrics["accuracy"]) == pytest.approx(hits)


CASES = {
    "kSoftmaxLoss": {"softmaxloss_conf": {"topk": 2, "scale": 0.5}},
    "kEuclideanLoss": {"euclideanloss_conf": {"scale": 2}},
    "kSigmoidCrossEntropyLoss": {"sigmoidcrossentropyloss_conf": {"scale": 3}},
}


@pytest.mark.parametrize("backend", available_backends())
@pytest.mark.parametrize("kind", CASES)
def test_weights_leave_rows_out_and_repeat_them(kind: str, backend: str):
    rng, counts = np.random.default_rng(0), np.array([2, 0, 1, 1, 0, 2])
    ops = BACKENDS[backend]()
    scores = rng.normal(size=(ROWS, 4)).astype(np.float32)
    target = rng.integers(0, 4, ROWS) if kind == "kSoftmaxLoss" else rng.uniform(size=(ROWS, 4)).astype(np.float32)

    def run(sources: list[np.ndarray]) -> tuple[dict[str, tuple[float, float]], np.ndarray]:
        placed = [ops.asarray(source) if source.dtype.kind == "f" else source for source in sources]
        loss = make(kind, *(source.shape for source in sources), **CASES[kind])
        ctx = layer_context(ops, ROWS)
        output = loss.compute_feature([], placed, ctx)
        ((_, metrics),) = read_metrics([("loss", output.metrics)], ops)
        needs = [True] + [False] * (len(sources) - 1)
        gradient = loss.compute_gradient([], placed, output, None, needs, ctx)[0][0]
        return metrics, ops.to_numpy(gradient)

    metrics, gradient = run([scores, target, counts.astype(np.int32)])
    repeated, of_repeated = run([scores.repeat(counts, axis=0), target.repeat(counts, axis=0)])
    for name, (total, count) in repeated.items():
        assert metrics[name] == (pytest.approx(total, rel=1e-5), count), name  # the counts add up to the rows
    starts = np.cumsum(counts) - counts
    summed = [of_repeated[start : start + count].sum(axis=0) for start, count in zip(starts, counts, strict=True)]
    np.testing.assert_allclose(gradient, summed, rtol=1e-4, atol=1e-6)


def test_weights_for_each_step_of_a_sequence():
    loss = layer("loss", "kSoftmaxLoss", "ip", "data", "weights", per_step=True)
    data, weights = (layer(name, "kRecordInput", store_conf={"path": "x"}) for name in ("data", "weights"))
    ip = layer("ip", "kInnerProduct", "data", innerproduct_conf={"num_output": 3}, per_step=True)
    for shape in ((4,), ()):
        words = RecordInfo((4, 2), ROWS, label_shape=(4,))
        infos = {"data": words, "weights": RecordInfo(shape, ROWS, has_labels=False)}
        net = NetConf(layer=[data, weights, ip, loss])
        if shape:
            assert create_net(net, Phase.kTrain, infos).layer("loss").shape == (ROWS, 4, 3)
        else:
            with pytest.raises(UserError, match="needs 4 steps .* from every source, but 'weights' gives 6"):
                create_net(net, Phase.kTrain, infos)


def test_other_losses_take_no_weights():
    with pytest.raises(UserError, match="layer 'loss': takes 2 source layers, not 3"):
        build(dense("ip", "data"), layer("loss", "kHingeLoss", "ip", "data", "data"), shape=(3,), rows=ROWS)
