"""Nets whose unrolled copies are merged, beside the copies, and a step of training of both."""

import numpy as np
import pytest

from dsinga.job import NetConf, Phase, loads
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from dsinga.training import bp


def conf_of(text: str) -> NetConf:
    return loads(f"neuralnet {{\n{text}\n}}", "job.conf").neuralnet


def run(net: NeuralNet, records: dict[str, Records], rows: Rows | None = None, step: int = 3, values=None):
    """Return metrics and gradients of one iteration, params being uniform numbers by name."""
    ops = get_ops("numpy")
    if values is None:
        rng = {name: np.random.default_rng(len(name) * 1000 + ord(name[0])) for name in net.params}
        values = {
            name: rng[name].uniform(-0.5, 0.5, param.shape).astype(np.float32) for name, param in net.params.items()
        }
    pushed: dict[str, np.ndarray] = {}
    total = next(iter(records.values())).data.shape[0]
    ctx = Context(ops, Phase.kTrain, rows or Rows(0, total, total), seed=5, step=step)
    return bp(net, values, records, ctx, pushed.__setitem__), pushed


def both(text: str, info: dict[str, RecordInfo]) -> tuple[NeuralNet, NeuralNet]:
    conf = conf_of(text)
    return create_net(conf, Phase.kTrain, info), create_net(conf, Phase.kTrain, info, merged=False)


def assert_same_training(merged: NeuralNet, unrolled: NeuralNet, records: dict[str, Records]) -> None:
    assert {name: param.shape for name, param in merged.params.items()} == {
        name: param.shape for name, param in unrolled.params.items()
    }
    (metrics, gradients), (expected_metrics, expected) = run(merged, records), run(unrolled, records)
    assert metrics.keys() == expected_metrics.keys()
    for name, (total, count) in expected_metrics.items():
        assert metrics[name] == (pytest.approx(total, rel=1e-5), count), name
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=2e-4, atol=2e-6, err_msg=name)
        assert np.abs(gradient).max() > 1e-4, name
