"""Several losses in one net: training minimises their weighted sum, along every path to one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet
from dsinga.training import bp
from tests.support.partition_nets import net_of
from tests.support.partitioned_run import DoubleOps, batches_of, initial

STEP = 1e-5
LOSSES = {"image_label": 0.7, "text_label": 1.5, "distance": 0.2}

Values = dict[str, np.ndarray]
Batch = dict[str, Records]


@pytest.fixture(scope="module")
def case() -> tuple[NeuralNet, Values, Batch]:
    net = net_of("mdnn")
    (batch,) = batches_of(net, 1, 10)
    exact = {
        name: Records(data.astype(np.float32), labels) for name, (data, labels) in batch.items()
    }  # rounded as for layers
    return net, initial(net), exact


def run(net: NeuralNet, values: Values, batch: Batch) -> tuple[Values, dict[str, float]]:
    """Return the gradients, and the means of the metrics."""
    found: Values = {}
    metrics = bp(net, values, batch, Context(DoubleOps(), net.phase, Rows(0, 10, 10)), found.__setitem__)
    return found, {name: total / count for name, (total, count) in metrics.items()}


def test_the_total_loss_is_the_sum_of_those_named_after_their_layers(case: Any) -> None:
    _, metrics = run(*case)
    assert metrics["loss"] == pytest.approx(sum(metrics[f"{layer}/loss"] for layer in LOSSES))
    assert metrics["accuracy"] == metrics["text_label/accuracy"]
    assert len(metrics) == 2 + 3 + 2


def places(values: Values) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield three places of each param."""
    rng = np.random.default_rng(0)
    for name, value in values.items():
        for _ in range(3):
            yield name, tuple(int(rng.integers(length)) for length in value.shape)


def test_gradients_are_those_of_the_total_loss(case: Any) -> None:
    net, values, batch = case
    gradients, _ = run(net, values, batch)
    for name, place in places(values):
        ends = []
        for step in (STEP, -STEP):
            moved = values[name].copy()
            moved[place] += step
            ends.append(run(net, values | {name: moved}, batch)[1]["loss"])
        slope = (ends[0] - ends[1]) / (2 * STEP)
        assert gradients[name].reshape(values[name].shape)[place] == pytest.approx(slope, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("path", ["image", "text"])
def test_the_euclidean_loss_has_gradients_for_both_codes(case: Any, path: str) -> None:
    net, values, batch = case
    still = {name: np.zeros_like(value) if "scores" in name else value for name, value in values.items()}
    gradients, _ = run(net, still, batch)  # label losses give no gradient through weights of 0
    assert np.abs(gradients[f"{path}_code_weight"]).max() > 0.01
