"""The base of algorithms and agents: models, spaces, distributions, saving."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dsinga
from dsinga import nn, rl
from dsinga.base.errors import UserError
from dsinga.job import LayerConf, LayerType
from dsinga.rl.environments.spaces import best_actions, log_probabilities, policy_size, sample_actions, space_of
from tests.support.refusals import refused
from tests.support.rl_cases import actor_critic
from tests.support.small_job import assert_same

SPACES = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(3))

TEXT = """
neuralnet {
  layer { name: "observation" type: kRecordInput store_conf { batchsize: 1 } }
  layer { name: "fc" type: kInnerProduct srclayers: "observation" innerproduct_conf { num_output: 8 }
          param { init { type: kUniformSqrtFanIn } } }
  layer { name: "act" type: kReLU srclayers: "fc" }
  layer { name: "policy" type: kInnerProduct srclayers: "act" innerproduct_conf { num_output: 3 }
          param { init { type: kUniformSqrtFanIn } } }
  layer { name: "value" type: kInnerProduct srclayers: "act" innerproduct_conf { num_output: 1 }
          param { init { type: kUniformSqrtFanIn } } }
}
"""

TARGET = """
neuralnet {
  layer { name: "target" type: kRecordInput store_conf { batchsize: 1 } }
  layer { name: "loss" type: kEuclideanLoss srclayers: "value" srclayers: "target" }
}
"""


class ValueOnly(rl.Algorithm):
    """Learns the value alone, and acts at random."""

    def __init__(self, model: rl.Model, spaces: rl.Spaces = SPACES, **settings: Any):
        layers = dsinga.loads(TARGET).neuralnet.layer
        super().__init__(model, spaces, layers=layers, examples={"target": np.zeros((1, 1), np.float32)}, **settings)
        self.check_head(model.head(0, "the policy"), policy_size(spaces.action), "the policy")

    def predict(self, observations: np.ndarray) -> np.ndarray:
        return best_actions(self.heads(observations)[0], self.spaces.action)

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> rl.Sampled:
        policy, value = self.heads(observations)
        actions, logs = sample_actions(policy, self.spaces.action, rng)
        return rl.Sampled(actions, {"log_probability": logs, "value": value[:, 0]})

    def learn(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        return dict(self.update(batch))


def observations(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


@pytest.mark.parametrize("model", [rl.Model(TEXT), actor_critic(3)], ids=["text", "nn"])
def test_a_model_has_an_input_and_heads(model: rl.Model) -> None:
    assert (model.input, model.heads) == ("observation", ("policy", "value"))
    policy, value = ValueOnly(model).heads(observations(5))
    assert (policy.shape, value.shape) == ((5, 3), (5, 1))


def test_an_agent_takes_one_observation_or_several() -> None:
    agent = rl.Agent(ValueOnly(rl.Model(TEXT)))
    x = observations(6)
    assert agent.predict(x).shape == (6,)
    assert agent.predict(x[0]) == agent.predict(x)[0]
    assert agent.sample(x).extras["value"].shape == (6,)
    assert agent.sample(x[0]).extras["value"].shape == ()
    refused(lambda: agent.predict(np.zeros(5, np.float32)), r"observations have the shape \(4,\).*these have \(5,\)")


def test_a_state_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    agent = rl.Agent(rl.PPO(actor_critic(3), SPACES))
    agent.save(tmp_path)
    wider = rl.Agent(rl.PPO(rl.Model(TEXT.replace("num_output: 8", "num_output: 9")), SPACES))
    before = wider.predict(observations(5))
    refused(lambda: wider.restore(tmp_path), "params are those of another net")
    np.testing.assert_array_equal(wider.predict(observations(5)), before)
    refused(lambda: rl.Agent(rl.DQN(actor_critic(3), SPACES)).restore(tmp_path), "agent learns by PPO, this one by DQN")


@pytest.mark.parametrize(("saved", "given"), [(nn.Adam(0.01), nn.SGD(0.01)), (nn.SGD(0.01), nn.Adam(0.01))])
def test_the_state_of_another_updater_changes_nothing(saved: Any, given: Any) -> None:
    x = observations(16)
    first, second = (rl.Agent(ValueOnly(rl.Model(TEXT), updater=updater, seed=3)) for updater in (saved, given))
    first.learn({"observation": x, "target": x[:, :1]})
    before = second.predict(x)
    refused(lambda: second.set_state(first.state()), "checkpoint has the updater state .* resume with the updater that")
    np.testing.assert_array_equal(second.predict(x), before)
    assert second.algorithm.updater.steps == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x, net, env: rl.PPO(net, SPACES), r"a dsinga.rl.Model, not a Model of dsinga; give .*rl.Model\(net\)"),
        (lambda x, net, env: rl.DQN("MlpPolicy", SPACES), "takes a dsinga.rl.Model, not a str;"),
        (lambda x, net, env: rl.A2C(rl.Model(net), env), "the spaces of dsinga.rl, not a TimeLimit of gymnasium; give"),
        (
            lambda x, net, env: rl.ES(rl.Model(net), rl.Spaces(env.observation_space, env.action_space)),
            "takes the spaces of dsinga.rl, not Spaces of a Box of gymnasium; give",
        ),
        (lambda x, net, env: rl.Agent(rl.Model(net)), "an agent takes an algorithm, as .*, not <Model from"),
        (
            lambda x, net, env: rl.DQN(rl.Model(nn.Model(x, [nn.Dense(3, activation="softmax")(x)])), SPACES),
            "ends in a softmax, but DQN takes scores; leave the softmax out",
        ),
        (
            lambda x, net, env: rl.PPO(rl.Model(net, heads=["value", "policy"]), SPACES),
            "PPO needs 3 outputs of the head 'value' for actions that are 3 discrete values, but it has 1",
        ),
    ],
)
def test_an_algorithm_is_made_from_a_model_and_spaces(make: Any, text: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    x = nn.Input(shape=4, name="observation")
    net = nn.Model(x, [nn.Dense(3, name="policy")(x), nn.Dense(1, name="value")(x)])
    refused(lambda: make(x, net, gymnasium.make("CartPole-v1")), text)


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    refused(lambda: rl.Model(TEXT, heads=["polcy"]), "no layer 'polcy'; did you mean 'policy'")
    refused(lambda: rl.Model([nn.Dense(2)]), r"takes a dsinga.nn.Model\(inputs, outputs\), not a list")  # type: ignore[arg-type]
    with pytest.raises(dsinga.UserError, match="'loss' is a loss; leave it out"):
        rl.Model(TEXT.replace("}\n}", "}\n layer { name: 'loss' type: kEuclideanLoss srclayers: 'value' }\n}"))
    refused(lambda: rl.Model(TEXT, heads=["policy"]).head(1, "the value"), "1 head.*needs one for the value")
    with pytest.raises(dsinga.UserError, match="needs 5 outputs of the head 'policy' for the policy, but it has 3"):
        ValueOnly(rl.Model(TEXT), rl.Spaces(rl.box((4,)), rl.DiscreteSpace(5)))
    with pytest.raises(dsinga.UserError, match="ema_conf has no effect on an agent, which acts by its newest params"):
        ValueOnly(rl.Model(TEXT), updater=nn.Adam(use_ema=True))
    shaped = rl.Model(TEXT.replace("batchsize: 1", "batchsize: 1 shape: 4"))
    refused(lambda: ValueOnly(shaped, rl.Spaces(rl.box((6,)), rl.DiscreteSpace(3))), r"\(4,\), .* the shape \(6,\)")
    refused(lambda: rl.Agent(ValueOnly(rl.Model(TEXT))).restore(tmp_path), "no checkpoint in")
    x = nn.Input(shape=(3, 8, 8), name="observation")
    model = rl.Model(nn.Model(x, [nn.Dense(2)(nn.Flatten()(x)), nn.Dense(1)(nn.Flatten()(x))]))
    with pytest.raises(dsinga.UserError, match=r"records of shape \(3, 8, 8\), .*\(8, 8, 3\); images are channels, he"):
        rl.PPO(model, rl.Spaces(rl.box((8, 8, 3), 0, 255, np.uint8), rl.DiscreteSpace(2)))
    for shape in ((3, 8, 8), (192,), (3, 1, 8, 8)):
        rl.PPO(model, rl.Spaces(rl.box(shape, 0, 255, np.uint8), rl.DiscreteSpace(2)))
    agent = rl.Agent(rl.DQN(actor_critic(3), SPACES, first_epsilon=0, last_epsilon=0))
    x = observations(3)
    x[1, 2] = np.nan
    for act in (agent.sample, agent.predict):
        with pytest.raises(UserError, match="an observation has nan at.*let the environment"):
            act(x)
    zeros = np.zeros(3, np.float32)
    batch = rl.Transitions(observations(3), zeros.astype(int), zeros, x, zeros > 0, zeros, zeros.astype(int), zeros)
    refused(lambda: agent.learn(batch), r"an observation has nan at \(2,\)")
    refused(lambda: agent.predict((observations(1)[0], {})), r"Gymnasium returns \(observation, info\): give the first")
    refused(lambda: rl.Agent(agent.algorithm, seed=-1), "seed is -1; give a whole number of at least 0")


def test_actions_are_drawn_by_their_probabilities() -> None:
    policy = np.tile(np.log(np.array([[0.5, 0.3, 0.2]], np.float32)), (20_000, 1))
    actions, logs = sample_actions(policy, rl.DiscreteSpace(3), np.random.default_rng(0))
    counts = np.bincount(actions, minlength=3)
    assert stats.chisquare(counts, [10_000, 6_000, 4_000]).pvalue > 0.001
    np.testing.assert_allclose(np.exp(logs), np.array([0.5, 0.3, 0.2])[actions], rtol=1e-5)


def test_gaussian_actions_have_the_density_of_scipy() -> None:
    rng = np.random.default_rng(0)
    policy = rng.normal(size=(50, 4)).astype(np.float32)
    actions, logs = sample_actions(policy, rl.box((2,)), rng)
    expected = stats.norm.logpdf(actions, policy[:, :2], np.exp(policy[:, 2:])).sum(axis=1)
    np.testing.assert_allclose(logs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(best_actions(policy, rl.box((2,))), policy[:, :2])
    assert (log_probabilities(policy, policy[:, :2], rl.box((2,))) >= logs - 1e-6).all()


def test_spaces_of_gymnasium_are_ours() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    assert space_of(spaces.Discrete(3), "action") == rl.DiscreteSpace(3)
    image = space_of(spaces.Box(0, 255, (3, 8, 8), np.uint8), "observation")
    assert (image.shape, image.dtype) == ((3, 8, 8), np.uint8)
    with pytest.raises(dsinga.UserError, match="observation space Dict.*use Box, .*wrappers.FlattenObservation"):
        space_of(spaces.Dict({"a": spaces.Discrete(2)}), "observation")
    for space in (spaces.MultiDiscrete([2, 3]), spaces.Discrete(2, start=1), spaces.Box(0, 9, (2,), np.int64)):
        with pytest.raises(UserError, match="action space .*use Box of floats, .*wrappers.TransformAction"):
            space_of(space, "action")


def test_an_agent_of_other_actions_is_refused() -> None:
    class Reaching:
        observation_space, action_space = SPACES.observation, rl.box((1,), -1, 1)
        reset = step = None

    agent = rl.Agent(rl.PPO(actor_critic(3), SPACES))
    refused(lambda: rl.evaluate(agent, "CartPole-v1", 1), "'CartPole-v1' are 2 disc")
    refused(lambda: agent.check_environments(rl.make_environments(Reaching, 1)), r"'Reaching'.*from \[-1")
    wide = rl.PPO(rl.Model(nn.Model(x := nn.Input(shape=4), [nn.Dense(2)(x), nn.Dense(1)(x)])), rl.Spaces(
        SPACES.observation, rl.box((1,), -2, 2)
    ))  # fmt: skip
    refused(lambda: rl.Agent(wide).check_environments(rl.make_environments(Reaching, 1)), "spaces of this environment")
    refused(lambda: rl.evaluate("PPO", "CartPole-v1", 1), "'PPO'; its method predict")  # type: ignore[arg-type]


def test_a_copy_of_an_agent_goes_on_by_itself() -> None:
    x = observations(16)
    batch = {"observation": x, "target": x[:, :1]}
    first = rl.Agent(ValueOnly(rl.Model(TEXT), updater=nn.Adam(0.01)), seed=3)
    first.learn(batch)
    second = pickle.loads(pickle.dumps(first))
    before = {name: value.copy() for name, value in first.algorithm.params.items()}
    second.learn(batch)
    assert_same(first.algorithm.params, before)
    first.learn(batch)
    assert_same(second.algorithm.params, first.algorithm.params)


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_actions_have_the_shape_of_their_space(shape: tuple[int, ...]) -> None:
    space, rng = rl.box(shape, -1, 1), np.random.default_rng(0)
    policy = rng.normal(size=(5, policy_size(space))).astype(np.float32)
    actions, logs = sample_actions(policy, space, rng)
    assert (actions.shape, best_actions(policy, space).shape, logs.shape) == ((5, *shape), (5, *shape), (5,))
    np.testing.assert_array_equal(log_probabilities(policy, actions, space), logs)


class Labelled(rl.Algorithm):
    """Learns classes of observations, which its batches give as labels."""

    def __init__(self, model: rl.Model, spaces: rl.Spaces = SPACES, **settings: Any):
        loss = LayerConf(name="classes", type=LayerType.kSoftmaxLoss, srclayers=[model.heads[0], model.input])
        super().__init__(model, spaces, layers=[loss], labels=np.zeros(1, np.int64), **settings)

    def predict(self, observations: np.ndarray) -> np.ndarray:
        return self.heads(observations)[0].argmax(axis=1)

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> rl.Sampled:
        return rl.Sampled(self.predict(observations), {})

    def learn(self, batch: tuple[np.ndarray, np.ndarray | None]) -> dict[str, float]:
        return dict(self.update({self.model.input: batch[0]}, batch[1]))


def test_a_loss_takes_labels_that_the_algorithm_gives_with_its_batches() -> None:
    agent = rl.Agent(Labelled(rl.Model(TEXT), updater=nn.SGD(0.5), seed=1))
    x = observations(200)
    labels = x[:, :3].argmax(axis=1)
    scores = agent.algorithm.heads(x)[0]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    metrics = [agent.learn((x, labels)) for _ in range(60)]
    assert metrics[0]["loss"] == pytest.approx(-logs[np.arange(200), labels].mean(), rel=1e-5)
    assert metrics[-1]["accuracy"] > 0.9
    assert (agent.predict(x) == labels).mean() > 0.9
    source = next(layer.store_conf.records for layer in agent.algorithm.job(8).neuralnet.layer if layer.store_conf)
    assert source.has_labels
    refused(lambda: agent.learn((x, None)), "labels")
