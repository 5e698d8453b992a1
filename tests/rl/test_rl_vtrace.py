"""kVTraceLoss: the layer contract with its targets held constant, and its definition."""

from typing import Any

import numpy as np
import pytest

from dsinga.job import Phase
from dsinga.layers import Context, Layer, Rows
from dsinga.ops import get_ops
from dsinga.testing import LayerCase, LayerContract
from tests.support.refusals import refused

BATCH, STEPS, ACTIONS = 5, 4, 3
STEP = (BATCH, STEPS)


class VTraceCase(LayerCase):
    """Sources of kVTraceLoss: numbers of actions, discounts from 0 to 1; the policy and the values get gradients."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        if index == 2 and len(self.shapes[2]) == 2:
            return rng.integers(0, ACTIONS, STEP).astype(np.float64)
        if index == 5:
            return rng.choice([0.0, 0.5, 0.9], STEP)
        return super().source(layer, index, rng)

    def needs(self) -> list[bool]:
        return [True, True, False, False, False, False]


def shapes(policy: int = ACTIONS, *numbers: int) -> list[tuple[int, ...]]:
    return [(BATCH, STEPS + 1, policy), (BATCH, STEPS + 1, 1), (*STEP, *numbers), STEP, STEP, STEP]


class TestVTraceLoss(LayerContract):
    cases = [
        VTraceCase("kVTraceLoss", shapes()),
        VTraceCase("kVTraceLoss", shapes(4, 2), {"vtraceloss_conf": {"distribution": "kGaussian"}}, "Gaussian"),
    ]

    # That of the loss without constants differs; that of IMPALA's updates, beside PyTorch, is in its place.
    test_the_gradient_is_the_derivative = None  # type: ignore[assignment]


def batch(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    policy, value = rng.normal(size=(BATCH, STEPS + 1, ACTIONS)), rng.normal(size=(BATCH, STEPS + 1, 1))
    action, reward = rng.integers(0, ACTIONS, STEP), rng.normal(size=STEP)
    sources = [policy, value, action, rng.normal(-1, 0.5, STEP), reward, 0.9 * (rng.random(STEP) < 0.8)]
    return [source.astype(np.float32) for source in sources]


def compute(settings: dict[str, Any], sources: list[np.ndarray]) -> np.ndarray:
    layer = LayerCase("kVTraceLoss", shapes(), {"vtraceloss_conf": settings}).layer()
    ops = get_ops().for_worker()
    ops.enter()
    ctx = Context(ops, Phase.kTrain, Rows(0, BATCH, BATCH), 0, 0)
    return layer.compute_feature([], sources, ctx).feature


def log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def test_targets_are_those_of_the_definition() -> None:
    """v_s = V_s + Σ_t (discounts and c from s to t - 1)·δ_t, summed up term by term, as in the paper's equation 1."""
    sources = batch()
    policy, value, action, old, reward, discount = (source.astype(np.float64) for source in sources)
    targets = compute({"rho_clip": 1.2, "c_clip": 0.9}, sources)
    for b in range(BATCH):
        logs = log_softmax(policy[b])[np.arange(STEPS), action[b].astype(int)]
        ratio = np.exp(logs - old[b])
        for s in range(STEPS):
            expected = value[b, s, 0]
            for t in range(s, STEPS):
                factor = np.prod([discount[b, i] * min(0.9, ratio[i]) for i in range(s, t)])
                following = reward[b, t] + discount[b, t] * value[b, t + 1, 0] - value[b, t, 0]
                expected += factor * min(1.2, ratio[t]) * following
            assert targets[b, s] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_action_that_is_not_there_is_named_with_its_source() -> None:
    sources = batch()
    sources[2][0, 0] = ACTIONS
    refused(lambda: compute({}, sources), "3 actions", "'source2' gives 0 to 3")
