"""A3C: worker groups that learn from environments of their own."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga import UserError, nn, rl
from dsinga.cluster import connect
from dsinga.job import ClusterConf
from dsinga.rl.algorithms.a2c import A2C
from dsinga.rl.algorithms.ppo import PPO
from dsinga.rl.collecting import Collector
from dsinga.rl.environments import make_environments
from dsinga.worker.group_worker import group_seed

SPACES = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))


def model() -> rl.Model:
    x = nn.Input(shape=4, name="observation")
    hidden = nn.Dense(8, activation="tanh")(x)
    return rl.Model(nn.Model(x, [nn.Dense(2, name="policy")(hidden), nn.Dense(1, name="value")(hidden)]))


def new_agent() -> rl.Agent:
    return rl.Agent(A2C(model(), SPACES, updater=nn.Adam(0.01)))


def test_one_group_learns_as_a_loop_does() -> None:
    """The gradients, the updates on the server and the random numbers are those of a loop in one process."""
    agent, seed = new_agent(), group_seed(5, 0)
    algorithm, collector = agent.algorithm, Collector(make_environments("CartPole-v1", 2, seed=seed))
    for step in range(6):
        agent.rng = np.random.default_rng([seed, step])
        algorithm.learn(collector.rollout(agent.sample, 4, algorithm.values))
    other = new_agent()
    with connect(workers=1) as client:
        result = rl.train_asynchronously(
            *(other, "CartPole-v1"), groups=1, steps=48, client=client, environments=2, rollout_steps=4, seed=5,
            progress=False,
        )  # fmt: skip
    assert len(result.history) > 0
    for name, value in algorithm.params.items():
        np.testing.assert_allclose(other.algorithm.params[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("servers", [1, 2], ids=["Downpour", "Hogwild"])
def test_groups_have_environments_of_their_own(servers: int) -> None:
    agent = new_agent()
    before = {name: value.copy() for name, value in agent.algorithm.params.items()}
    with connect(workers=2) as client:
        rl.train_asynchronously(
            *(agent, "CartPole-v1"), groups=2, steps=160, client=client, environments=2, rollout_steps=4,
            cluster=ClusterConf(nserver_groups=servers), progress=False,
        )  # fmt: skip
    assert all((agent.algorithm.params[name] != value).any() for name, value in before.items())


def test_other_algorithms_are_refused() -> None:
    agent = rl.Agent(PPO(model(), SPACES))
    with pytest.raises(UserError, match="asynchronous worker groups learn by A2C, .*, not by PPO"):
        rl.train_asynchronously(agent, "CartPole-v1", groups=2, steps=100)
