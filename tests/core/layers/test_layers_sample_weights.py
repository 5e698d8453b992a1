"""Weights of 0, 1 and 2 beside rows left out, once and twice; weights for each step."""

import numpy as np
import pytest

from dsinga.job import NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.net import create_net
from dsinga.ops import BACKENDS
from dsinga.testing.layer_cases import available_backends
from dsinga.testing.layer_passes import layer_context
from dsinga.training.metrics import read_metrics
from tests.support.layer_cases import layer_of
from tests.support.refusals import refused
from tests.support.training_cases import layer

ROWS = 6


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
        loss = layer_of(kind, *(source.shape for source in sources), **CASES[kind])
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
    for shape in ((4,), ()):  # a weight for each step, and one for each row, which is that of its steps
        words = RecordInfo((4, 2), ROWS, label_shape=(4,))
        infos = {"data": words, "weights": RecordInfo(shape, ROWS, has_labels=False)}
        net = NetConf(layer=[data, weights, ip, loss])
        assert create_net(net, Phase.kTrain, infos).layer("loss").shape == (ROWS, 4, 3)
    infos["weights"] = RecordInfo((3,), ROWS, has_labels=False)
    refused(lambda: create_net(net, Phase.kTrain, infos), "4 steps", "'weights' gives 6 x 3")
