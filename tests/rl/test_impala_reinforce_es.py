"""IMPALA against PyTorch with targets by V-trace, REINFORCE's choice of steps, and evolution strategies."""

from typing import Any

import numpy as np
import pytest

from dsinga import nn, rl
from dsinga.base.errors import UserError
from dsinga.rl.algorithms.actor_critic import discounted_returns
from dsinga.rl.algorithms.es import centred_ranks
from dsinga.rl.environments.spaces import policy_size
from tests.support.refusals import refused
from tests.support.rl_cases import actor_critic, torch_heads, torch_policy
from tests.support.v_trace import v_trace

STEPS, COUNT = 5, 3
SPACES = {
    "discrete": rl.Spaces(rl.box((4,)), rl.DiscreteSpace(3)),
    "continuous": rl.Spaces(rl.box((4,)), rl.box((2,), -1, 1)),
}
DISCRETE = SPACES["discrete"]


def rollout(kind: str = "discrete") -> rl.Rollout:
    rng, shape = np.random.default_rng(2), (STEPS, COUNT)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    terminated[2, 0] = truncated[1, 2] = True
    actions = rng.integers(3, size=shape) if kind == "discrete" else normal(*shape, 2)
    extras = {"log_probability": normal(*shape) * 0.5 - 2}
    bootstrap = normal(*shape) * truncated
    return rl.Rollout(
        normal(*shape, 4), actions, normal(*shape), terminated, truncated, bootstrap, normal(COUNT, 4), extras
    )


@pytest.mark.parametrize("kind", SPACES)
def test_an_update_of_impala_is_that_of_pytorch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    settings: dict[str, Any] = {"entropy_scale": 0.01, "max_gradient_norm": 0, "rho_clip": 0.9, "updater": nn.SGD(1.0)}
    learner = rl.IMPALA(actor_critic(policy_size(SPACES[kind].action)), SPACES[kind], seed=3, **settings)
    batch = rollout(kind)
    before = {name: value.copy() for name, value in learner.params.items()}
    params = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    policy, value = torch_heads(params, torch.tensor(batch.observations))
    last_policy, last = torch_heads(params, torch.tensor(batch.last_observations))
    actions = torch.tensor(batch.actions)
    logs, entropy = torch_policy(policy, actions)
    _, last_entropy = torch_policy(last_policy, actions[-1])  # the entropy is of all observations, the last ones too
    targets, advantages = v_trace(
        logs.detach().numpy() - batch.extras["log_probability"], batch.rewards, value.detach().numpy(),
        batch.terminated, batch.truncated, batch.bootstrap, last.detach().numpy(), discount=0.99, rho_clip=0.9,
    )  # fmt: skip
    loss = (-torch.tensor(advantages) * logs).sum() + 0.25 * ((value - torch.tensor(targets)) ** 2).sum()
    entropies = 0.01 * (entropy.sum() + last_entropy.sum())
    ((loss - entropies) / COUNT).backward()
    metrics = learner.learn(batch)
    ratios = (logs - torch.tensor(batch.extras["log_probability"])).exp()
    assert metrics["ratio"] == pytest.approx(ratios.mean().item(), rel=1e-5)
    assert metrics["loss"] == pytest.approx(((loss - entropies / (STEPS + 1)) / COUNT).item(), rel=1e-4)
    for name, param in params.items():
        np.testing.assert_allclose(before[name] - learner.params[name], param.grad.numpy(), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_reinforce_learns_from_the_steps_before_an_end(heads: int) -> None:
    batch = rollout()
    returns = discounted_returns(
        batch.rewards, batch.terminated, batch.truncated, batch.bootstrap, np.zeros(COUNT, np.float32), discount=0.99
    )
    complete = [(0, 0), (1, 0), (2, 0), (0, 2), (1, 2)]
    settings: dict[str, Any] = {"normalize_advantages": False, "max_gradient_norm": 0, "updater": nn.SGD(1.0)}
    learner = rl.REINFORCE(actor_critic(3, heads=heads), DISCRETE, **settings)
    values = learner.heads(batch.observations.reshape(-1, 4))[-1].reshape(STEPS, COUNT, -1)[..., 0]
    weights = [returns[at] - (values[at] if heads == 2 else 0) for at in complete]
    before = learner.params["policy_bias"].copy()
    policy = np.stack([learner.heads(batch.observations[at][np.newaxis])[0][0] for at in complete])
    probabilities = np.exp(policy) / np.exp(policy).sum(axis=1, keepdims=True)
    chosen = np.eye(3)[[batch.actions[at] for at in complete]]
    learner.learn(batch)
    expected = (np.array(weights)[:, None] * (chosen - probabilities)).mean(axis=0)
    np.testing.assert_allclose(learner.params["policy_bias"] - before, expected, rtol=1e-4, atol=1e-6)


def test_reinforce_waits_for_the_end_of_an_episode() -> None:
    batch = rollout()
    batch.terminated[:] = batch.truncated[:] = False
    learner = rl.REINFORCE(actor_critic(3), DISCRETE)
    with pytest.warns(UserWarning, match="no episode ended in a rollout of 5 steps, .* raise rollout_steps above"):
        assert learner.learn(batch) == {}
    assert learner.updater.steps == 0


def test_ranks_are_centred_and_equal_for_equal_returns() -> None:
    np.testing.assert_allclose(centred_ranks(np.array([7.0, -1.0, 100.0])), [0, -0.5, 0.5])
    np.testing.assert_allclose(centred_ranks(np.array([1.0, 1.0, 3.0, 1.0, 5.0])), [-0.25, -0.25, 0.25, -0.25, 0.5])


def test_evolution_strategies_climb_to_a_maximum() -> None:
    es = rl.ES(actor_critic(3, heads=1), DISCRETE, population=32, deviation=0.1, updater=nn.Adam(0.05), seed=1)

    def distance(params: dict[str, np.ndarray]) -> float:
        return float(sum(np.square(value - 1).sum() for value in params.values()))

    candidates = list(es.candidates())
    for plus, minus in zip(candidates[::2], candidates[1::2], strict=True):
        np.testing.assert_allclose(
            (plus["policy_bias"] + minus["policy_bias"]) / 2, es.params["policy_bias"], atol=1e-6
        )
    first = distance(es.params)
    for _ in range(60):
        metrics = es.learn([-distance(params) for params in es.candidates()])
    assert distance(es.params) < 0.1 * first
    assert metrics["best_candidate_return"] > metrics["candidate_return"]


def test_settings_that_mean_nothing_are_refused() -> None:
    for cls, settings, text in (
        (rl.ES, {"population": 3}, "population is 3; give an even number"),
        (rl.PPO, {"epochs": 0}, "epochs is 0; give a whole number of at least 1"),
        (rl.PPO, {"discount": 1.5}, "discount is 1.5; give a number between 0 and 1"),
    ):
        with pytest.raises(UserError, match=text):
            cls(actor_critic(3), DISCRETE, **settings)  # type: ignore[arg-type]
    refused(lambda: rl.PPO(actor_critic(3, heads=1), DISCRETE), "needs one for the value", "of a state")


def test_reinforce_without_a_value_learns_from_episodes_that_were_cut_off() -> None:
    learner = rl.REINFORCE(actor_critic(3, heads=1), DISCRETE)
    assert learner.values(np.zeros((3, 4), np.float32)).tolist() == [0, 0, 0]
    assert learner.learn(rollout()).keys() >= {"policy_loss"}
