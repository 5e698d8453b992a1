"""Losses of policies and of values of actions against PyTorch."""

from typing import Any

import numpy as np
import pytest

from dsinga.job import Phase
from dsinga.layers import Context, Rows
from dsinga.ops import get_ops
from tests.support.layer_cases import layer_of
from tests.support.refusals import refused

ROWS, ACTIONS, NUMBERS = 64, 5, 3


def compute(layer: Any, *sources: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """Return the means of the metrics, and the gradient for the policy."""
    ops = get_ops().for_worker()
    ops.enter()
    ctx = Context(ops, Phase.kTrain, Rows(0, ROWS, ROWS), 0, 0)
    output = layer.compute_feature([], list(sources), ctx)
    needs = [True] + [False] * (len(sources) - 1)
    (gradient, *_), _ = layer.compute_gradient([], list(sources), output, None, needs, ctx)
    return {name: total / count for name, (total, count) in output.metrics.items()}, gradient


def batch(distribution: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    wide = ACTIONS if distribution == "kCategorical" else 2 * NUMBERS
    policy = rng.normal(size=(ROWS, wide)).astype(np.float32)
    if distribution == "kCategorical":
        action = rng.integers(ACTIONS, size=(ROWS, 1)).astype(np.float32)
    else:
        action = rng.normal(size=(ROWS, NUMBERS)).astype(np.float32)
    return policy, action, rng.normal(size=(ROWS, 1)).astype(np.float32), rng.normal(size=(ROWS, 1)).astype(np.float32)


def distribution_of(torch: Any, name: str, policy: Any) -> Any:
    if name == "kCategorical":
        return torch.distributions.Categorical(logits=policy)
    means, logs = policy.chunk(2, dim=1)
    return torch.distributions.Independent(torch.distributions.Normal(means, logs.exp()), 1)


@pytest.mark.parametrize("distribution", ["kCategorical", "kGaussian"])
@pytest.mark.parametrize("kind", ["kPolicyGradientLoss", "kPPOLoss", "kEntropyLoss"])
def test_loss_and_gradient_are_those_of_pytorch(kind: str, distribution: str) -> None:
    torch = pytest.importorskip("torch")
    policy, action, advantage, noise = batch(distribution)
    theirs = torch.tensor(policy, requires_grad=True)
    chosen = distribution_of(torch, distribution, theirs)
    logs = chosen.log_prob(torch.tensor(action[:, 0] if distribution == "kCategorical" else action))
    old = (logs.detach().numpy()[:, None] + 0.3 * noise).astype(np.float32)
    sources, settings = [policy, action, advantage], {"distribution": distribution, "scale": 0.5}
    weights = torch.tensor(advantage[:, 0])
    if kind == "kPolicyGradientLoss":
        expected = -(weights * logs).mean()
    elif kind == "kPPOLoss":
        sources, settings = [*sources, old], {**settings, "clip": 0.1}
        ratio = (logs - torch.tensor(old[:, 0])).exp()
        expected = -torch.min(ratio * weights, ratio.clip(0.9, 1.1) * weights).mean()
    else:
        sources, expected = [policy], -chosen.entropy().mean()
    layer = layer_of(kind, *(source.shape for source in sources), **{f"{kind[1:].lower()}_conf": settings})
    metrics, gradient = compute(layer, *sources)
    (0.5 * expected).backward()
    assert metrics["loss"] == pytest.approx(0.5 * expected.item(), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), rtol=1e-4, atol=1e-7)
    if kind == "kPPOLoss":
        assert metrics["clip_fraction"] == pytest.approx(((ratio - 1).abs() > 0.1).float().mean().item())
        assert metrics["kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item(), rel=1e-4)


@pytest.mark.parametrize("delta", [0.0, 0.7])
def test_temporal_differences_have_the_loss_and_the_gradient_of_pytorch(delta: float) -> None:
    torch = pytest.importorskip("torch")
    values, action, target, noise = batch("kCategorical")
    weights = np.abs(noise)
    theirs = torch.tensor(values, requires_grad=True)
    chosen = theirs.gather(1, torch.tensor(action).long())
    function = torch.nn.functional.huber_loss if delta else torch.nn.functional.mse_loss
    options = {"delta": delta} if delta else {}
    losses = function(chosen, torch.tensor(target), reduction="none", **options) * (1 if delta else 0.5)
    (losses * torch.tensor(weights)).mean().backward()
    layer = layer_of("kTDLoss", values.shape, *[(ROWS, 1)] * 3, tdloss_conf={"delta": delta})
    metrics, gradient = compute(layer, values, action, target, weights)
    assert metrics["loss"] == pytest.approx((losses * torch.tensor(weights)).mean().item(), rel=1e-5)
    assert metrics["value"] == pytest.approx(chosen.mean().item(), rel=1e-4)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_an_action_beyond_the_policy_is_refused() -> None:
    layer = layer_of("kPolicyGradientLoss", (64, 5), (64, 1), (64, 1))
    policy, action, advantage, _ = batch("kCategorical")
    refused(
        lambda: compute(layer, policy, np.where(action == 4, 7, action), advantage),
        "5 actions",
        "'source1' gives 0 to 7",
    )
