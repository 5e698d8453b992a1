"""DDPG and TD3 against PyTorch, and their parts worked by hand."""

from typing import Any

import numpy as np
import pytest

from dsinga import nn, rl
from dsinga.job import loads
from dsinga.rl.algorithms.ddpg import DDPG, TD3
from dsinga.rl.from_job import agent_of
from tests.support.executed_pages import ROOT
from tests.support.refusals import refused
from tests.support.rl_cases import transitions

SPACES = rl.Spaces(rl.box((4,)), rl.BoxSpace(np.float32([-2, 0]), np.float32([2, 10]), np.dtype(np.float32)))


def model(critics: int = 1, shared: bool = False) -> rl.Model:
    """An actor of one hidden layer, and critics of one; with ``shared``, both begin with a layer of the critic's."""
    x = nn.Input(shape=4, name="observation")
    trunk = nn.Dense(6, activation="tanh", name="trunk")(x) if shared else x
    hidden = nn.Dense(8, activation="tanh", name="actor")(trunk)
    action = nn.Dense(2, activation="tanh", name="action")(hidden)
    both = nn.Concatenate()([trunk, action])
    values = []
    for k in range(critics):
        of_both = nn.Dense(8, activation="tanh", name=f"critic{k}")(both)
        values.append(nn.Dense(1, name=f"value{k}")(of_both))
    return rl.Model(nn.Model(x, [action, *values]))


def unit(actions: np.ndarray) -> np.ndarray:
    return (actions - np.float32([0, 5])) / np.float32([2, 5])


class TorchNet:
    """The net of :func:`model` in PyTorch, on a dict of params."""

    def __init__(self, params: dict[str, Any], shared: bool):
        self.params, self.shared = params, shared

    def dense(self, x: Any, layer: str) -> Any:
        return x @ self.params[f"{layer}_weight"].T + self.params[f"{layer}_bias"]

    def trunk(self, x: Any) -> Any:
        return self.dense(x, "trunk").tanh() if self.shared else x

    def action(self, x: Any) -> Any:
        return self.dense(self.dense(self.trunk(x), "actor").tanh(), "action").tanh()

    def value(self, x: Any, action: Any, critic: int = 0) -> Any:
        torch = pytest.importorskip("torch")
        both = torch.cat([self.trunk(x), action], dim=1)
        return self.dense(self.dense(both, f"critic{critic}").tanh(), f"value{critic}")[:, 0]


def tensors(params: dict[str, np.ndarray], **settings: Any) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {name: torch.tensor(value.copy(), **settings) for name, value in params.items()}


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('["observation", "action"]', '["observation", "acton"]', ":33: layer 'both': .*'acton'.* 'action'"),
        ('srclayers: "critic_fc2"', 'srclayers: "critic"', ":39: layer 'critic_relu2': .*'critic'.* 'critic_fc2'"),
        ('name: "critic_relu2"', 'name: "critic_relu1"', ":39: layer 'critic_relu1' is in phase kTrain twice"),
        ('srclayers: "critic_fc1"', 'srclayers: "value"', ":36: layer 'critic_relu1': its srclayers lead back to it"),
        ('["action", "value"]', '["acton", "value"]', ":11: the net has no layer 'acton'; did you mean 'action'"),
        ('name: "value" type', 'name: "value" include: kTest type', ":11: the net has no layer 'value' in phase"),
    ],
)
def test_layers_that_are_not_there_are_named(right: str, wrong: str, message: str) -> None:
    text = (ROOT / "datasets" / "pendulum" / "ddpg.conf").read_text()
    refused(lambda: agent_of(loads(text.replace(right, wrong), "ddpg.conf"), SPACES), f"^ddpg.conf{message}")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("algorithm", [DDPG, TD3])
def test_an_update_is_that_of_pytorch(algorithm: type[DDPG], shared: bool) -> None:
    torch = pytest.importorskip("torch")
    settings = {"target_noise": 0.0, "actor_every": 1} if algorithm is TD3 else {}
    learner = algorithm(
        *(model(algorithm.critics, shared), SPACES), updater=nn.SGD(0.5), critic_updater=nn.SGD(0.1), target_share=0.25,
        **settings,
    )  # fmt: skip
    for value in learner.target_params.values():
        value += np.float32(0.1)
    ours, target = tensors(learner.params, requires_grad=True), tensors(learner.target_params)
    net, followed, batch = TorchNet(ours, shared), TorchNet(target, shared), transitions(SPACES)
    x, following = torch.tensor(batch.observations), torch.tensor(batch.next_observations)
    values = [followed.value(following, followed.action(following), k) for k in range(algorithm.critics)]
    goal = torch.tensor(batch.rewards) + 0.9 * torch.stack(values).amin(0) * torch.tensor(~batch.terminated)
    taken, weights = torch.tensor(unit(batch.actions)), torch.tensor(batch.weights)
    errors = [net.value(x, taken, k) - goal for k in range(algorithm.critics)]
    loss = sum((weights * error**2).mean() for error in errors)
    critic = [name for name in ours if name.startswith(("critic", "value", "trunk"))]
    actor = [name for name in ours if name not in critic]
    np.testing.assert_allclose(learner.errors(batch), errors[0].detach().numpy(), rtol=1e-4, atol=1e-5)
    metrics = learner.learn(batch)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    gradients = torch.autograd.grad(loss, [ours[name] for name in critic])
    with torch.no_grad():
        for name, gradient in zip(critic, gradients, strict=True):
            ours[name] -= 0.1 * gradient
    mean = net.value(x, net.action(x)).mean()
    assert metrics["value"] == pytest.approx(mean.item(), rel=1e-4)
    gradients = torch.autograd.grad(mean, [ours[name] for name in actor])
    with torch.no_grad():
        for name, gradient in zip(actor, gradients, strict=True):
            ours[name] += 0.5 * gradient
    assert learner.params.keys() == ours.keys()
    for name, value in ours.items():
        expected = value.detach()
        np.testing.assert_allclose(learner.params[name], expected.numpy(), rtol=1e-5, atol=2e-6)
        expected = 0.75 * target[name] + 0.25 * expected
        np.testing.assert_allclose(learner.target_params[name], expected.numpy(), rtol=1e-5, atol=2e-6)


def test_actions_are_within_the_bounds_and_random_at_first() -> None:
    learner = DDPG(model(), SPACES, random_steps=500, noise=0.5)
    rng, x = np.random.default_rng(0), transitions(SPACES, 500).observations
    first = learner.sample(x, rng).actions
    assert first.dtype == np.float32
    for column, (low, high) in enumerate([(-2, 2), (0, 10)]):  # uniform
        np.testing.assert_allclose(
            np.quantile(first[:, column], [0.1, 0.5, 0.9]),
            low + (high - low) * np.array([0.1, 0.5, 0.9]),
            atol=0.06 * (high - low),
        )
    best, noisy = learner.predict(x), learner.sample(x, rng).actions
    inside = (np.abs(unit(noisy)) < 1).all(axis=1)
    assert 0.4 < np.std(unit(noisy - best + np.float32([0, 5]))[inside]) < 0.55
    assert (np.abs(unit(noisy)) <= 1).all()
    assert (~inside).any()


def test_correlated_noise_is_an_ornstein_uhlenbeck_process() -> None:
    learner = DDPG(model(), SPACES, random_steps=0, noise=0.3, noise_correlation=0.9)
    rng, shape = np.random.default_rng(0), (50, 2)
    noise = np.stack([learner._draw_noise(shape, rng) for _ in range(1000)])
    assert noise.dtype == np.float32
    assert np.std(noise) == pytest.approx(0.3, rel=0.05), "stationary from the first step on"
    assert np.std(noise[0]) == pytest.approx(0.3, rel=0.2)
    for lag in (1, 5):
        product = (noise[lag:] * noise[:-lag]).mean()
        assert product / np.var(noise) == pytest.approx(0.9**lag, abs=0.03)
    across = np.corrcoef(noise.reshape(1000, -1).T)
    assert np.abs(across[~np.eye(100, dtype=bool)]).mean() < 0.15, "environments and actions have noise of their own"
    fresh = 0.3 * np.random.default_rng(1).standard_normal(shape, np.float32)
    following = learner._draw_noise(shape, np.random.default_rng(1))
    np.testing.assert_allclose(following, 0.9 * noise[-1] + np.sqrt(1 - 0.9**2) * fresh, rtol=1e-4, atol=1e-6)
    assert learner._draw_noise((1, 2), rng).shape == (1, 2), "another number of environments begins anew"


def test_the_noise_of_targets_is_limited_and_repeats() -> None:
    learner = TD3(model(2), SPACES, target_noise=5.0, target_noise_limit=0.3)
    x = transitions(SPACES, 200).observations
    plain = TD3(model(2), SPACES, target_noise=0.0)._target_actions(x)
    noisy = learner._target_actions(x)
    np.testing.assert_array_equal(noisy, learner._target_actions(x))
    assert np.abs(noisy - plain).max() == pytest.approx(0.3, rel=1e-5)
    assert np.abs(noisy).max() <= 1


def test_the_actor_of_td3_learns_in_every_second_update() -> None:
    learner = TD3(model(2), SPACES)
    for update in range(4):
        before = {name: value.copy() for name, value in learner.params.items()}
        target = {name: value.copy() for name, value in learner.target_params.items()}
        metrics = learner.learn(transitions(SPACES, seed=update))
        changed = {name for name, value in learner.params.items() if not np.array_equal(value, before[name])}
        followed = any(not np.array_equal(value, target[name]) for name, value in learner.target_params.items())
        assert {"critic0_weight", "critic1_weight"} <= changed
        assert ("actor_weight" in changed) == ("value" in metrics) == followed == (update % 2 == 1)


def test_the_state_of_another_updater_of_the_critic_changes_nothing() -> None:
    first = DDPG(model(), SPACES)
    first.learn(transitions(SPACES))
    second = DDPG(model(), SPACES, critic_updater=nn.SGD(0.01))
    before = dict(second.params)
    refused(lambda: second.restore(first.state()), "'mean', 'squares', but .* needs none")
    assert second.updater.steps == 0
    for name, value in before.items():
        np.testing.assert_array_equal(second.params[name], value)


def test_messages_say_what_does_not_fit() -> None:
    observation, bounded = rl.box((4,)), rl.box((2,), -1, 1)
    refused(lambda: DDPG(model(), rl.Spaces(observation, rl.DiscreteSpace(3))), "but .* are 3 discrete values; use DQN")
    refused(lambda: DDPG(model(), rl.Spaces(observation, rl.box((2,)))), "those .* have none; give its action_space")
    refused(lambda: DDPG(model(), rl.Spaces(observation, rl.box((3,), -1, 1))), "'action_tanh' for actions")
    refused(lambda: TD3(model(), rl.Spaces(observation, bounded)), "needs one for the value", "of an action")
    x = nn.Input(shape=4, name="observation")
    apart = rl.Model(nn.Model(x, [nn.Dense(2, name="action")(x), nn.Dense(1, name="value")(x)]))
    refused(lambda: DDPG(apart, rl.Spaces(observation, bounded)), "'action'", "join the action")


def test_a_metric_of_some_updates_has_their_mean() -> None:
    environments = rl.make_environments("Pendulum-v1", 1)
    x = nn.Input(shape=3, name="observation")
    action = nn.Dense(1, activation="tanh", name="action")(x)
    values = [nn.Dense(1, name=name)(nn.Concatenate()([x, action])) for name in ("first", "second")]
    agent = rl.Agent(TD3(rl.Model(nn.Model(x, [action, *values])), environments.spaces, random_steps=0))
    metrics = []

    def learn(batch: rl.Transitions) -> dict[str, float]:
        metrics.append(TD3.learn(agent.algorithm, batch))
        return metrics[-1]

    agent.learn = learn  # type: ignore[method-assign]
    memory = rl.ReplayMemory(environments.spaces, 100)
    loop = rl.OffPolicyLearning(agent, rl.Collector(environments), memory, batch_size=4, learn_after=1)
    means = loop.advance(6)
    assert [len(each) for each in metrics] == [1, 2, 1, 2, 1, 2]
    assert means["value"] == pytest.approx(np.mean([each["value"] for each in metrics[1::2]]))
