"""The jobs of DQN, DDPG and TD3 in datasets/ learn their tasks, with several seeds."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import rl

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "datasets"


def mean_return(path: str, seed: int, **settings: bool) -> float:
    """Train a job and return the mean return of its last evaluation, 100 episodes by the best actions."""
    job = dsinga.load(FOLDER / path)
    conf = job.reinforcement
    if settings:
        conf = conf.replace(dqn_conf=conf.dqn_conf.replace(**settings))
    result = rl.train(job.replace(seed=seed, reinforcement=conf), progress=False)
    assert conf.evaluation_episodes == 100
    return result.history[-1, "episode_return"]


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("double", [False, True])
def test_dqn_balances_the_pole(double: bool, seed: int) -> None:
    assert mean_return("cartpole/dqn.conf", seed, double=double) >= 475


@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
def test_dqn_balances_the_pole_with_four_actors(seed: int) -> None:
    changes = [
        "num_actors=4",
        "num_environments=1",
        "rollout_steps=32",
        "max_staleness=3",
        "dqn_conf.last_epsilon=0.2",
    ]
    job = dsinga.load(
        FOLDER / "cartpole/dqn.conf", [f"seed={seed}", *(f"reinforcement.{change}" for change in changes)]
    )
    agent = rl.train(job, progress=False).agent
    assert rl.evaluate(agent, "CartPole-v1", 100, seed=seed + 1000).mean_return >= 475


@pytest.mark.parametrize("job", ["ddpg", "td3"])
def test_the_pendulum_is_swung_up(job: str) -> None:
    assert np.median([mean_return(f"pendulum/{job}.conf", seed) for seed in (1, 2, 3)]) >= -200


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_car_gets_to_the_flag_by_correlated_noise(seed: int) -> None:
    assert mean_return("mountaincar/ddpg.conf", seed) >= 90
