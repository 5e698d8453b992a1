"""DQN against PyTorch, and its parts worked by hand."""

from typing import Any

import numpy as np
import pytest

from dsinga import nn, rl
from dsinga.rl.algorithms.dqn import DQN
from tests.support.refusals import refused
from tests.support.rl_cases import transitions

SPACES = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(3))


def model(dueling: bool = False) -> rl.Model:
    x = nn.Input(shape=4, name="observation")
    hidden = nn.Dense(8, activation="relu", name="hidden")(x)
    values = nn.Dense(3, name="values")(hidden)
    if dueling:
        values = nn.Layer("kDueling", name="duel")([nn.Dense(1, name="value")(hidden), values])
    return rl.Model(nn.Model(x, [values]))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_an_update_is_that_of_pytorch(double: bool, dueling: bool) -> None:
    torch = pytest.importorskip("torch")
    algorithm = DQN(model(dueling), SPACES, double=double, updater=nn.SGD(0.1), target_every=1000)
    for value in algorithm.target_params.values():
        value += np.float32(0.1)
    before = {name: torch.tensor(value, requires_grad=True) for name, value in algorithm.params.items()}
    target = {name: torch.tensor(value) for name, value in algorithm.target_params.items()}
    batch = transitions(SPACES)

    def values(params: dict[str, Any], x: np.ndarray) -> Any:
        def dense(h: Any, layer: str) -> Any:
            weight = params[f"{layer}_weight"]
            return h @ (weight if weight.shape[0] == h.shape[1] else weight.T) + params[f"{layer}_bias"]

        hidden = torch.relu(dense(torch.tensor(x), "hidden"))
        q = dense(hidden, "values")
        return dense(hidden, "value") + q - q.mean(dim=1, keepdim=True) if dueling else q

    following = values(target, batch.next_observations)
    chooser = values(before, batch.next_observations) if double else following
    best = following.gather(1, chooser.argmax(dim=1, keepdim=True))[:, 0].detach()
    goal = torch.tensor(batch.rewards) + 0.9 * best * torch.tensor(~batch.terminated)
    chosen = values(before, batch.observations).gather(1, torch.tensor(batch.actions)[:, None])[:, 0]
    losses = torch.nn.functional.huber_loss(chosen, goal, reduction="none") * torch.tensor(batch.weights)
    losses.mean().backward()
    np.testing.assert_allclose(algorithm.errors(batch), (chosen - goal).detach().numpy(), rtol=1e-4, atol=1e-5)
    metrics = algorithm.learn(batch)
    assert metrics["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert metrics["value"] == pytest.approx(chosen.mean().item(), rel=1e-4)
    for name, value in before.items():
        expected = (value - 0.1 * value.grad).detach().numpy()
        np.testing.assert_allclose(algorithm.params[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
def test_targets_of_expected_sarsa_are_means_over_the_policy(double: bool) -> None:
    """By the probability of each action, in float64; after half of epsilon_steps epsilon is (0.8 + 0.2) / 2."""
    settings = {"first_epsilon": 0.8, "last_epsilon": 0.2, "epsilon_steps": 64, "double": double}
    algorithm, batch = rl.ExpectedSARSA(model(), SPACES, **settings), transitions(SPACES)
    algorithm.sample(batch.observations, np.random.default_rng(0))
    for value in algorithm.target_params.values():
        value += np.float32(0.1)
    values = algorithm.heads(batch.next_observations, algorithm.target_params)[0].astype(np.float64)
    chooser = algorithm.heads(batch.next_observations)[0] if double else values
    chances = np.full((32, 3), 0.5 / 3)
    chances[np.arange(32), chooser.argmax(axis=1)] += 0.5
    expected = batch.rewards + 0.9 * (chances * values).sum(axis=1) * ~batch.terminated
    np.testing.assert_allclose(algorithm.targets(batch), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_target_params_follow_at_intervals(share: float) -> None:
    algorithm = DQN(model(), SPACES, target_every=2, target_share=share)
    start = {name: value.copy() for name, value in algorithm.target_params.items()}
    algorithm.learn(transitions(SPACES))
    for name, value in algorithm.target_params.items():
        np.testing.assert_array_equal(value, start[name])
    algorithm.learn(transitions(SPACES))
    for name, value in algorithm.target_params.items():
        expected = (1 - share) * start[name] + share * algorithm.params[name]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)


def test_the_share_of_random_actions_falls_linearly() -> None:
    algorithm = DQN(model(), SPACES, first_epsilon=1.0, last_epsilon=0.2, epsilon_steps=1000)
    rng, x = np.random.default_rng(0), transitions(SPACES, 100).observations
    best = algorithm.predict(x)
    shares = []
    for _ in range(12):
        shares.append(algorithm.epsilon)
        algorithm.sample(x, rng)
    np.testing.assert_allclose(shares, [1 - 0.08 * k for k in range(10)] + [0.2, 0.2])
    equal = np.mean([(algorithm.sample(x, rng).actions == best).mean() for _ in range(100)])
    assert equal == pytest.approx(0.8 + 0.2 / 3, abs=0.02)  # random actions are the best one in a third of cases


def test_each_actor_has_another_share_of_random_actions() -> None:
    algorithm = DQN(model(), SPACES, first_epsilon=1.0, last_epsilon=0.4, epsilon_steps=100)
    shares = []
    for actor in range(3):
        algorithm.act_as(actor, 3, dict(algorithm.params), 100)
        shares.append(algorithm.epsilon)
    assert shares == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    algorithm.act_as(2, 3, dict(algorithm.params), 0)
    assert algorithm.epsilon == 1  # at first all actions of all actors are random
    algorithm.act_as(0, 1, dict(algorithm.params), 50)
    assert algorithm.epsilon == pytest.approx(0.7)


def test_other_actions_are_refused() -> None:
    refused(lambda: DQN(model(), rl.Spaces(rl.box((4,)), rl.box((2,)))), "DQN takes discrete actions, but", "use DDPG")


def test_the_targets_of_errors_are_those_of_the_update_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = DQN(model(), SPACES), DQN(model(), SPACES)
    batch, calls = transitions(SPACES), []
    targets = DQN.targets

    def count(algorithm: DQN, batch: rl.Transitions) -> np.ndarray:
        calls.append(algorithm)
        return targets(algorithm, batch)

    monkeypatch.setattr(DQN, "targets", count)
    errors = first.errors(batch)
    np.testing.assert_array_equal(errors, first.heads(batch.observations)[0][np.arange(32), batch.actions] - targets(
        first, batch
    ))  # fmt: skip
    assert first.learn(batch) == second.learn(transitions(SPACES))
    assert calls == [first, second]
    assert first.learn(batch) == second.learn(transitions(SPACES))  # old targets are not taken again
    assert calls == [first, second, first, second]
