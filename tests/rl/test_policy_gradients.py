"""PPO's and A2C's gradients against those of PyTorch, on the same batch and params."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga import nn, rl
from dsinga.rl.algorithms import actor_critic as ac
from dsinga.rl.algorithms.ppo import A2C, PPO
from dsinga.rl.environments.spaces import policy_size
from tests.support.later_import import torch
from tests.support.refusals import refused
from tests.support.rl_cases import actor_critic, torch_heads, torch_policy

ROWS = 24
SPACES = {
    "discrete": rl.Spaces(rl.box((4,)), rl.DiscreteSpace(3)),
    "continuous": rl.Spaces(rl.box((4,)), rl.box((2,), -1, 1)),
}


def batch(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((ROWS, 7)).astype(np.float32)
    actions = rng.integers(3, size=(ROWS, 1)).astype(np.float32) if kind == "discrete" else normal[:, 5:]
    return {
        "observation": normal[:, :4],
        ac.ACTION: actions,
        ac.ADVANTAGE: rng.standard_normal((ROWS, 1)).astype(np.float32),
        ac.RETURN: rng.standard_normal((ROWS, 1)).astype(np.float32),
        ac.LOG_PROBABILITY: (rng.standard_normal((ROWS, 1)) * 0.5 - 2).astype(np.float32),
    }


def torch_loss(kind: str, params: dict[str, Any], rows: dict[str, Any], policy_loss: Callable[..., Any]) -> Any:
    """The loss of the net above: the policy's, half of the value's squared error, and 0.01 of the entropy."""
    policy, value = torch_heads(params, rows["observation"])
    action = rows[ac.ACTION]
    log_probability, entropy = torch_policy(policy, action[:, 0].long() if kind == "discrete" else action)
    loss = policy_loss(log_probability, rows[ac.ADVANTAGE][:, 0], rows[ac.LOG_PROBABILITY][:, 0])
    errors = (value - rows[ac.RETURN][:, 0]) ** 2
    return loss + 0.5 * errors.mean() - 0.01 * entropy.mean()


def ppo_loss(log_probability: Any, advantage: Any, old: Any) -> Any:
    ratio = (log_probability - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def a2c_loss(log_probability: Any, advantage: Any, old: Any) -> Any:
    return -(log_probability * advantage).mean()


@pytest.mark.parametrize("max_norm", [0.0, 0.1])
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(("algorithm", "loss"), [(PPO, ppo_loss), (A2C, a2c_loss)])
def test_an_update_is_that_of_pytorch(algorithm: Any, loss: Any, kind: str, max_norm: float) -> None:
    rows = batch(kind)
    settings = {"entropy_scale": 0.01, "max_gradient_norm": max_norm, "updater": nn.SGD(1.0)}
    learner = algorithm(actor_critic(policy_size(SPACES[kind].action)), SPACES[kind], seed=3, **settings)
    before = {name: value.copy() for name, value in learner.params.items()}
    params = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    expected = torch_loss(kind, params, {name: torch.tensor(array) for name, array in rows.items()}, loss)
    expected.backward()
    if max_norm:
        torch.nn.utils.clip_grad_norm_(params.values(), max_norm)
    inputs = {name: rows[name] for name in learner.net.net.inputs}
    metrics = learner.update(inputs)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    if algorithm is PPO:
        policy, action = torch_heads(params, torch.tensor(rows["observation"]))[0], torch.tensor(rows[ac.ACTION])
        logs, _ = torch_policy(policy, action[:, 0].long() if kind == "discrete" else action)
        ratio = (logs - torch.tensor(rows[ac.LOG_PROBABILITY][:, 0])).exp()
        assert metrics["clip_fraction"] == pytest.approx(((ratio - 1).abs() > 0.2).float().mean().item())
        assert metrics["kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item(), rel=1e-4)
    for name, param in params.items():
        np.testing.assert_allclose(before[name] - learner.params[name], param.grad.numpy(), rtol=2e-3, atol=2e-6)


def test_an_action_beyond_the_policy_is_refused() -> None:
    learner, rows = PPO(actor_critic(3), SPACES["discrete"]), batch("discrete")
    rows[ac.ACTION][3] = 7
    refused(lambda: learner.update({name: rows[name] for name in learner.net.net.inputs}), "3 actions", "gives 0 to 7")
