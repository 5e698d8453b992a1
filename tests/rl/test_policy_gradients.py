"""PPO's and A2C's gradients against those of PyTorch, on the same batch and params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga import nn, rl
from dsinga.rl.algorithms import actor_critic
from dsinga.rl.algorithms.a2c import A2C
from dsinga.rl.algorithms.ppo import PPO

torch = pytest.importorskip("torch")

ROWS = 24
SPACES = {
    "discrete": rl.Spaces(rl.box((4,)), rl.DiscreteSpace(3)),
    "continuous": rl.Spaces(rl.box((4,)), rl.box((2,), -1, 1)),
}


def model(kind: str) -> rl.Model:
    x = nn.Input(shape=4, name="observation")
    hidden = nn.Dense(8, activation="tanh", name="hidden")(x)
    size = 3 if kind == "discrete" else 4
    return rl.Model(nn.Model(x, [nn.Dense(size, name="policy")(hidden), nn.Dense(1, name="value")(hidden)]))


def batch(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((ROWS, 7)).astype(np.float32)
    actions = rng.integers(3, size=(ROWS, 1)).astype(np.float32) if kind == "discrete" else normal[:, 5:]
    return {
        "observation": normal[:, :4],
        actor_critic.ACTION: actions,
        actor_critic.ADVANTAGE: rng.standard_normal((ROWS, 1)).astype(np.float32),
        actor_critic.RETURN: rng.standard_normal((ROWS, 1)).astype(np.float32),
        actor_critic.LOG_PROBABILITY: (rng.standard_normal((ROWS, 1)) * 0.5 - 2).astype(np.float32),
    }


def torch_loss(kind: str, params: dict[str, Any], rows: dict[str, Any], policy_loss: Callable[..., Any]) -> Any:
    """The loss of the net above: the policy's, half of the value's squared error, and 0.01 of the entropy."""
    hidden = torch.tanh(rows["observation"] @ params["hidden_weight"].T + params["hidden_bias"])
    policy = hidden @ params["policy_weight"].T + params["policy_bias"]
    value = hidden @ params["value_weight"].T + params["value_bias"]
    action = rows[actor_critic.ACTION]
    if kind == "discrete":
        distribution = torch.distributions.Categorical(logits=policy)
        log_probability, entropy = distribution.log_prob(action[:, 0].long()), distribution.entropy()
    else:
        distribution = torch.distributions.Normal(policy[:, :2], policy[:, 2:].exp())
        log_probability, entropy = distribution.log_prob(action).sum(1), distribution.entropy().sum(1)
    loss = policy_loss(log_probability, rows[actor_critic.ADVANTAGE][:, 0], rows[actor_critic.LOG_PROBABILITY][:, 0])
    errors = (value[:, 0] - rows[actor_critic.RETURN][:, 0]) ** 2
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
    learner = algorithm(
        model(kind), SPACES[kind], entropy_scale=0.01, max_gradient_norm=max_norm, updater=nn.SGD(1.0), seed=3
    )
    before = {name: value.copy() for name, value in learner.params.items()}
    params = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    expected = torch_loss(kind, params, {name: torch.tensor(array) for name, array in rows.items()}, loss)
    expected.backward()
    if max_norm:
        torch.nn.utils.clip_grad_norm_(params.values(), max_norm)
    inputs = {name: rows[name] for name in learner.net.net.inputs}
    metrics = learner.update(inputs)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    for name, param in params.items():
        np.testing.assert_allclose(before[name] - learner.params[name], param.grad.numpy(), rtol=2e-3, atol=2e-6)
