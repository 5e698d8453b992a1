"""Agents with hidden states: gradients through sequences with resets, and tasks that need memory."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn, rl
from dsinga.cluster import connect
from dsinga.rl.algorithms.actor_critic import RETURN
from dsinga.rl.algorithms.dqn import DQN
from dsinga.rl.algorithms.impala import IMPALA
from dsinga.rl.algorithms.ppo import A2C, PPO
from dsinga.rl.collecting import Collector
from dsinga.rl.remote.actor_learning import RemoteRolloutLearning
from dsinga.rl.remote.actor_pool import ActorPool
from tests.support.refusals import refused
from tests.support.small_job import assert_same

STEPS, COUNT, HIDDEN = 6, 3, 5
SPACES = rl.Spaces(rl.box((3,)), rl.DiscreteSpace(2))


class Recall:
    """Shows one of two cues, and pays for the action of the same number three steps later.

    Every fourth episode is cut off before, so that there are ends of both kinds.
    """

    observation_space, action_space = SPACES

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.rng = np.random.default_rng(seed)
        self.cue, self.step_number, self.last = int(self.rng.integers(2)), 0, int(self.rng.integers(4)) == 0
        return self.observation(), {}

    def observation(self) -> np.ndarray:
        shown = {0: self.cue, 3: 2}.get(self.step_number)
        return np.array([shown == i for i in range(3)], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_end = self.step_number == 3
        reward = float(is_end and action == self.cue)
        self.step_number += 1
        return self.observation(), reward, is_end, self.last and self.step_number == 2, {}


class AlwaysRecall(Recall):
    """Recall without episodes that are cut off."""

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.last = False
        return observation, info


def model(units: int = HIDDEN, *, is_recurrent: bool = True) -> rl.Model:
    x = nn.Input(shape=3, name="observation")
    first = nn.Dense(units, activation="tanh", name="first")(x)
    second = nn.GRU(units, carry=True, name="gru") if is_recurrent else nn.Dense(units, activation="tanh")
    hidden = second(first)
    return rl.Model(nn.Model(x, [nn.Dense(2, name="policy")(hidden), nn.Dense(1, name="value")(hidden)]))


def rollout_with_ends(seed: int = 0) -> rl.Rollout:
    """A rollout that begins with hidden states, with episodes that end in the middle, in the last step, and not."""
    rng = np.random.default_rng(seed)
    shape = STEPS, COUNT
    terminated, truncated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    terminated[2, 0] = terminated[STEPS - 1, 1] = truncated[0, 1] = True
    return rl.Rollout(
        observations=rng.standard_normal((*shape, 3)).astype(np.float32), actions=rng.integers(2, size=shape),
        rewards=rng.standard_normal(shape).astype(np.float32), terminated=terminated, truncated=truncated,
        bootstrap=truncated * np.float32(0.5), last_observations=rng.standard_normal((COUNT, 3)).astype(np.float32),
        extras={"log_probability": np.full(shape, -0.8, np.float32)},
        hidden={"gru": rng.standard_normal((COUNT, HIDDEN)).astype(np.float32)},
    )  # fmt: skip


def step_by_step(algorithm: Any, rollout: rl.Rollout) -> np.ndarray:
    """Return the values (T + 1, N) of a rollout's observations, with the hidden states of one step after another."""
    hidden = algorithm.hidden_states(COUNT)
    hidden.update({name: array.copy() for name, array in rollout.hidden.items()})
    values = []
    for t, observations in enumerate([*rollout.observations, rollout.last_observations]):
        values.append(algorithm.values(observations, hidden))
        algorithm.predict(observations, hidden)
        if t < STEPS:
            hidden.reset(rollout.terminated[t] | rollout.truncated[t])
    return np.array(values)


def test_sequences_have_the_values_of_steps() -> None:
    algorithm, rollout = A2C(model(), SPACES), rollout_with_ends()
    expected = step_by_step(algorithm, rollout)
    np.testing.assert_allclose(algorithm.values_of(rollout), expected, rtol=1e-5, atol=1e-6)
    rollout.hidden = {"gru": rollout.hidden["gru"] * 0}
    assert abs(algorithm.values_of(rollout)[0] - expected[0]).min() > 1e-3  # the states at the beginning count
    np.testing.assert_allclose(algorithm.values_of(rollout)[3:, 0], expected[3:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_a_gradient_through_a_sequence_with_resets_is_that_of_pytorch(algorithm: Any) -> None:
    torch = pytest.importorskip("torch")
    settings = {"epochs": 1, "minibatches": 1} if algorithm is PPO else {}
    learner = algorithm(
        model(), SPACES, entropy_scale=0.01, max_gradient_norm=0.0, updater=nn.SGD(1.0), seed=3, **settings
    )
    rollout = rollout_with_ends()
    advantages, returns = map(torch.tensor, learner.estimate(rollout))
    before = {name: value.copy() for name, value in learner.params.items()}
    p = {name: torch.tensor(value, requires_grad=True) for name, value in before.items()}
    h, logits, values = torch.tensor(rollout.hidden["gru"]), [], []
    for t in range(STEPS):
        x = torch.tanh(torch.tensor(rollout.observations[t]) @ p["first_weight"].T + p["first_bias"])
        z, r = (torch.sigmoid(x @ p[f"gru_{g}_hx"].T + h @ p[f"gru_{g}_hh"].T + p[f"gru_{g}_b"]) for g in ("z", "r"))
        c = torch.tanh(x @ p["gru_c_hx"].T + r * (h @ p["gru_c_hh"].T) + p["gru_c_b"])
        h = z * h + (1 - z) * c
        logits.append(h @ p["policy_weight"].T + p["policy_bias"])
        values.append((h @ p["value_weight"].T + p["value_bias"])[:, 0])
        h = h * torch.tensor(~(rollout.terminated[t] | rollout.truncated[t]))[:, None]
    policy = torch.distributions.Categorical(logits=torch.stack(logits))
    logs = policy.log_prob(torch.tensor(rollout.actions))
    if algorithm is PPO:
        advantages = (advantages - advantages.mean()) / advantages.std(unbiased=False)
        ratio = (logs - torch.tensor(rollout.extras["log_probability"])).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    else:
        gain = logs * advantages
    errors = (torch.stack(values) - returns) ** 2
    loss = (-gain + 0.5 * errors - 0.01 * policy.entropy()).mean()
    loss.backward()
    metrics = learner.learn(rollout)
    assert metrics["entropy"] == pytest.approx(policy.entropy().mean().item(), rel=1e-5)
    for name, param in p.items():
        np.testing.assert_allclose(before[name] - learner.params[name], param.grad, rtol=2e-3, atol=2e-6)


def test_a_collected_rollout_agrees_with_its_sequences() -> None:
    agent = rl.Agent(PPO(model(), SPACES, epochs=1, minibatches=1))
    environments = rl.make_environments(Recall, 8)
    collector = Collector(environments, agent.hidden_states(8))
    algorithm = agent.algorithm
    assert isinstance(algorithm, PPO)
    rollouts = [collector.rollout(agent.sample, 7, algorithm.values) for _ in range(2)]
    assert rollouts[1].hidden["gru"].any()
    for rollout in rollouts:
        (batch,) = algorithm.batches(rollout)
        assert len(batch[RETURN]) == rollout.steps
        metrics = algorithm.update(batch)
        algorithm.updater.steps = 0
        if rollout is rollouts[0]:
            assert abs(metrics["kl"]) < 1e-6  # the policy is the one that has acted
        cut = rollout.truncated & ~rollout.terminated
        assert cut.any()
        assert (rollout.bootstrap != 0).tolist() == cut.tolist()


def test_the_value_after_a_cut_has_the_hidden_state_of_its_episode() -> None:
    algorithm = A2C(model(), SPACES, seed=1)
    environments = rl.make_environments(Recall, 24)
    collector = Collector(environments, algorithm.hidden_states(24))
    seen: list[np.ndarray] = []

    def values(observations: np.ndarray, hidden: Any) -> np.ndarray:
        seen.append(hidden["gru"])
        return algorithm.values(observations, hidden)

    rollout = collector.rollout(lambda x, h: algorithm.sample(x, np.random.default_rng(0), h), 2, values)
    (rows,) = np.nonzero(rollout.truncated[1])
    hidden = algorithm.hidden_states(len(rows))
    for t in range(2):
        algorithm.predict(rollout.observations[t, rows], hidden)
    np.testing.assert_allclose(seen[0], hidden["gru"], rtol=1e-5, atol=1e-6)
    assert not collector.hidden["gru"][rows].any()


def trained(algorithm: type[Any], is_recurrent: bool, steps: int = 6000, **settings: Any) -> Any:
    updates = {"epochs": 2, "minibatches": 2} if algorithm is PPO else {}
    net = model(units=16, is_recurrent=is_recurrent)
    agent = rl.Agent(algorithm(net, SPACES, updater=nn.Adam(0.01), seed=1, **updates))
    settings = {"environments": 8, "rollout_steps": 16, "progress": False, **settings}
    return rl.train(agent, AlwaysRecall, steps=steps, **settings)


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_an_agent_recalls_what_it_saw_three_steps_ago(algorithm: Any) -> None:
    assert rl.evaluate(trained(algorithm, True).agent, AlwaysRecall, 100).mean_return == 1


def test_an_agent_without_hidden_states_recalls_nothing() -> None:
    assert rl.evaluate(trained(A2C, False).agent, AlwaysRecall, 100).mean_return < 0.7


def test_a_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = trained(PPO, True, 640)
    trained(PPO, True, 320, workspace=tmp_path)
    resumed = trained(PPO, True, 640, workspace=tmp_path, resume=True)
    assert_same(resumed.agent.algorithm.params, unbroken.agent.algorithm.params)


def test_remote_actors_carry_hidden_states() -> None:
    agent = rl.Agent(PPO(model(), SPACES, epochs=1, minibatches=2))
    with connect(workers=1) as client:
        loop = RemoteRolloutLearning(agent, ActorPool(client, agent, Recall, actors=2, environments=2, seed=1))
        try:
            for _ in range(2):
                metrics = loop.advance(5)
            assert abs(metrics["kl"]) < 1e-2
            (states, *_) = loop.actors.states().values()
            assert states["hidden"]["gru"].any()
        finally:
            loop.close()


@pytest.mark.parametrize(("algorithm", "message"), [(DQN, "DQN learns from single"), (IMPALA, "IMPALA learns from")])
def test_an_algorithm_of_single_steps_refuses_hidden_states(algorithm: Any, message: str) -> None:
    refused(lambda: algorithm(model(), SPACES), f"{message}.*'gru' carries its state.*leave carry out")


def test_actions_without_hidden_states_are_refused() -> None:
    agent = rl.Agent(A2C(model(), SPACES))
    refused(lambda: agent.predict(np.zeros((2, 3), np.float32)), r"and none are given for 2 .*agent.hidden_states\(2\)")
    hidden = agent.hidden_states(1)
    refused(lambda: agent.sample(np.zeros((2, 3), np.float32), hidden), "those of 1 are given for 2")
    assert agent.predict(np.ones(3, np.float32), hidden) in (0, 1)
    assert hidden is not None
    assert copy.deepcopy(hidden)["gru"].any()


@pytest.mark.parametrize("settings", [{"groups": 2}, {"actors": 1, "central_inference": True}])
def test_ways_of_learning_without_hidden_states_are_refused(settings: dict[str, Any]) -> None:
    refused(lambda: trained(A2C, True, 64, **settings), "hidden states learns in this process")
