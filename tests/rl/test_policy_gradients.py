"""PPO's and A2C's gradients against those of PyTorch, on the same batch and params."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga import nn, rl
from dsinga.job import Phase
from dsinga.layers import Context, Layer, Rows
from dsinga.ops import get_ops
from dsinga.rl.algorithms import actor_critic as ac
from dsinga.rl.algorithms.actor_critic import discounted_returns, gae
from dsinga.rl.algorithms.ppo import A2C, PPO
from dsinga.rl.environments.spaces import policy_size
from dsinga.testing import LayerCase, LayerContract
from tests.core.layers.test_layers_refused import check_refused
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


# Losses of policies and values: configurations that are refused where the layer is made.
STEPS, POLICY = (6, 7, 3), (6, 5)
STEP, VALUES = (6, 4), (6, 5, 1)  # of kVTraceLoss
GAUSSIAN = {"distribution": "kGaussian"}
REFUSED: list[tuple[str, dict[str, Any], list[tuple[int, ...]], list[str]]] = [
    ("kEntropyLoss", {}, [STEPS], ["takes a policy (batch, K), but 'data' gives 6 x 7 x 3"]),
    ("kEntropyLoss", {"entropyloss_conf": GAUSSIAN}, [POLICY], ["logs of standard deviations", "gives 5 numbers"]),
    ("kTDLoss", {}, [POLICY, (6, 1), (3, 1)], ["takes targets 6 x 1 from 'a', which gives 3 x 1"]),
    ("kPolicyGradientLoss", {}, [POLICY, (6, 1), POLICY], ["takes advantages 6 x 1 from 'a', which gives 6 x 5"]),
    (
        *("kVTraceLoss", {}, [(6, 5, 3), (6, 4, 1), *[STEP] * 4]),
        ["takes a policy (batch, T + 1, K) and values", "'more' 6 x 4 x 1", "per_step"],
    ),
    (
        *("kVTraceLoss", {}, [(6, 5, 3), VALUES, STEP, STEP, (6, 5), STEP]),
        ["takes 6 x 4 numbers from 'c', a step less", "but gets 6 x 5"],
    ),
    (
        *("kVTraceLoss", {"vtraceloss_conf": GAUSSIAN}, [(6, 5, 4), VALUES, (6, 4, 1), *[STEP] * 3]),
        ["4 numbers (kGaussian) has actions of 2, but 'a' gives 6"],
    ),
    (
        *("kVTraceLoss", {"vtraceloss_conf": GAUSSIAN}, [(6, 5, 3), VALUES, (6, 4, 2), *[STEP] * 3]),
        ["3 numbers (kGaussian) has actions of 1.5, but 'a' gives 6"],
    ),
    (
        *("kVTraceLoss", {}, [(6, 5, 3), VALUES, (6, 4, 2), *[STEP] * 3]),
        ["policy of 3 numbers (kCategorical) has actions of 1, but 'a' gives 6 x 4 x 2"],
    ),
]


@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_is_refused_where_the_layer_is_made(fault: tuple[Any, ...]):
    check_refused(*fault)


# Returns and advantages beside their definitions, computed step by step for each environment.
def episodes(steps, environments, seed):
    """Rewards, values, ends and log ratios of a random rollout; a step in five ends an episode."""
    rng = np.random.default_rng(seed)
    shape = (steps, environments)
    kind = rng.integers(0, 10, shape)
    return {
        "rewards": rng.normal(size=shape), "values": rng.normal(size=shape), "terminated": kind == 0,
        "truncated": kind == 1, "bootstrap": np.where(kind == 1, rng.normal(size=shape), 0),
        "last_values": rng.normal(size=environments),
    }  # fmt: skip


def next_values(rollout, values):
    """What follows each step, by the definition of an end."""
    following = np.append(values[1:], rollout["last_values"][None], axis=0)
    return np.where(rollout["terminated"], 0, np.where(rollout["truncated"], rollout["bootstrap"], following))


def end_of_episode(rollout, t, i):
    """The last step of the rollout that belongs to the episode of step ``t``."""
    ended = rollout["terminated"] | rollout["truncated"]
    while t + 1 < len(ended) and not ended[t, i]:
        t += 1
    return t


sizes = given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.99, 1.0]))


@sizes
def test_gae_is_the_weighted_sum_of_errors_to_the_end_of_the_episode(steps, environments, seed, decay):
    rollout, discount = episodes(steps, environments, seed), 0.9
    delta = rollout["rewards"] + discount * next_values(rollout, rollout["values"]) - rollout["values"]
    expected = np.zeros((steps, environments))
    for i in range(environments):
        for t in range(steps):
            for k in range(t, end_of_episode(rollout, t, i) + 1):
                expected[t, i] += (discount * decay) ** (k - t) * delta[k, i]
    advantages, returns = gae(**rollout, discount=discount, decay=decay)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_allclose(returns, expected + rollout["values"], atol=1e-5)
    assert advantages.dtype == returns.dtype == np.float32


@sizes
def test_discounted_returns_add_up_rewards_to_the_end_of_the_episode(steps, environments, seed, discount):
    rollout = episodes(steps, environments, seed)
    values = rollout.pop("values")
    returns = discounted_returns(**rollout, discount=discount)
    for i in range(environments):
        for t in range(steps):
            end = end_of_episode(rollout, t, i)
            expected = sum(discount ** (k - t) * rollout["rewards"][k, i] for k in range(t, end + 1))
            after = discount ** (end + 1 - t) * next_values(rollout, values)[end, i]
            assert returns[t, i] == pytest.approx(expected + after, abs=1e-4)


def test_the_callers_arrays_stay_as_they_are():
    rollout = episodes(6, 2, 0)
    for name in ("rewards", "values", "bootstrap", "last_values"):
        rollout[name] = rollout[name].astype(np.float32)
    copies = {name: array.copy() for name, array in rollout.items()}
    gae(**rollout, discount=0.9, decay=0.9)
    assert all(np.array_equal(rollout[name], copies[name]) for name in rollout)


# kVTraceLoss: the layer contract with its targets held constant, and its definition.
BATCH, VTRACE_STEPS, ACTIONS = 5, 4, 3
VTRACE_STEP = (BATCH, VTRACE_STEPS)


class VTraceCase(LayerCase):
    """Sources of kVTraceLoss: numbers of actions, discounts from 0 to 1; the policy and the values get gradients."""

    def source(self, layer: Layer, index: int, rng: np.random.Generator) -> np.ndarray:
        if index == 2 and len(self.shapes[2]) == 2:
            return rng.integers(0, ACTIONS, VTRACE_STEP).astype(np.float64)
        if index == 5:
            return rng.choice([0.0, 0.5, 0.9], VTRACE_STEP)
        return super().source(layer, index, rng)

    def needs(self) -> list[bool]:
        return [True, True, False, False, False, False]


def shapes(policy: int = ACTIONS, *numbers: int) -> list[tuple[int, ...]]:
    long = BATCH, VTRACE_STEPS + 1
    return [(*long, policy), (*long, 1), (*VTRACE_STEP, *numbers), *[VTRACE_STEP] * 3]


class TestVTraceLoss(LayerContract):
    cases = [
        VTraceCase("kVTraceLoss", shapes()),
        VTraceCase("kVTraceLoss", shapes(4, 2), {"vtraceloss_conf": {"distribution": "kGaussian"}}, "Gaussian"),
    ]

    # That of the loss without constants differs; that of IMPALA's updates, beside PyTorch, is in its place.
    test_the_gradient_is_the_derivative = None  # type: ignore[assignment]


def vtrace_batch(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    policy, value = (rng.normal(size=(BATCH, VTRACE_STEPS + 1, size)) for size in (ACTIONS, 1))
    action, reward = rng.integers(0, ACTIONS, VTRACE_STEP), rng.normal(size=VTRACE_STEP)
    old, discount = rng.normal(-1, 0.5, VTRACE_STEP), 0.9 * (rng.random(VTRACE_STEP) < 0.8)
    return [source.astype(np.float32) for source in (policy, value, action, old, reward, discount)]


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
    sources = vtrace_batch()
    policy, value, action, old, reward, discount = (source.astype(np.float64) for source in sources)
    targets = compute({"rho_clip": 1.2, "c_clip": 0.9}, sources)
    for b in range(BATCH):
        logs = log_softmax(policy[b])[np.arange(VTRACE_STEPS), action[b].astype(int)]
        ratio = np.exp(logs - old[b])
        for s in range(VTRACE_STEPS):
            expected = value[b, s, 0]
            for t in range(s, VTRACE_STEPS):
                factor = np.prod([discount[b, i] * min(0.9, ratio[i]) for i in range(s, t)])
                following = reward[b, t] + discount[b, t] * value[b, t + 1, 0] - value[b, t, 0]
                expected += factor * min(1.2, ratio[t]) * following
            assert targets[b, s] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_action_that_is_not_there_is_named_with_its_source() -> None:
    sources = vtrace_batch()
    sources[2][0, 0] = ACTIONS
    refused(lambda: compute({}, sources), "3 actions", "'source2' gives 0 to 3")
