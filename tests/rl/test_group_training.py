"""Worker groups that learn from environments of their own, or from actors of their own."""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import dsinga
from dsinga import nn, rl
from dsinga.cluster import connect
from dsinga.cutting.cluster_topology import group_seed
from dsinga.job import ClusterConf
from dsinga.monitor.run_monitor import read_metrics
from dsinga.rl.agent_training import trained_agent
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import make_environments
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.rl_cases import actor_critic
from tests.support.small_job import assert_same

ROOT = Path(__file__).parents[2]
SPACES = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))


def new_agent(kind: Any = rl.A2C, **settings: Any) -> rl.Agent:
    return rl.Agent(kind(actor_critic(), SPACES, updater=nn.Adam(0.01), **settings))


train_in_groups = functools.partial(rl.train, in_groups=True, evaluation_episodes=0)


def cart() -> Any:
    """Return a CartPole, of which each environment draws its starts by its own number."""
    return gymnasium.make("CartPole-v1")


A2C_SETTINGS = {"normalize_advantages": True, "max_gradient_norm": 0.05}
PPO_SETTINGS = {"epochs": 2, "minibatches": 2, "max_gradient_norm": 0.05}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(rl.A2C, {}), (rl.A2C, A2C_SETTINGS), (rl.PPO, PPO_SETTINGS), (rl.IMPALA, {"max_gradient_norm": 0.05})],
    ids=["A2C", "A2C-normalized", "PPO", "IMPALA"],
)
def test_one_group_learns_as_a_loop_does(kind: Any, settings: dict[str, Any]) -> None:
    """The gradients, the updates on the server and the random numbers are those of a loop in one process."""
    agent, seed = new_agent(kind, **settings), group_seed(5, 0)
    algorithm, collector = agent.algorithm, Collector(make_environments("CartPole-v1", 2, seed=seed))
    for _ in range(6):
        agent.rng = np.random.default_rng([seed, algorithm.updater.steps])
        algorithm.learn(collector.rollout(agent.sample, 4, algorithm.values))
    other = new_agent(kind, **settings)
    with connect(workers=1) as client:
        result = train_in_groups(
            *(other, "CartPole-v1"), steps=48, client=client, environments=2, rollout_steps=4, seed=5, progress=False
        )
    assert len(result.history) > 0
    for name, value in algorithm.params.items():
        np.testing.assert_allclose(other.algorithm.params[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(rl.A2C, A2C_SETTINGS), (rl.IMPALA, {"max_gradient_norm": 0.05})],
    ids=["A2C", "IMPALA"],
)
def test_two_workers_of_a_group_learn_as_one_with_all_environments(kind: Any, settings: dict[str, Any]) -> None:
    """Starts and actions are those of the environment's number, norms and means those of the whole batch."""
    agents = [new_agent(kind, **settings) for _ in range(2)]
    with connect(workers=2) as client:
        for agent, workers in zip(agents, (1, 2), strict=True):
            train_in_groups(
                *(agent, cart), workers=workers, steps=8 * 4 * 6, client=client, environments=8 // workers,
                rollout_steps=4, progress=False,
            )  # fmt: skip
    for name, value in agents[0].algorithm.params.items():
        np.testing.assert_allclose(agents[1].algorithm.params[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "topology", [{"groups": 2, "cluster": ClusterConf(nserver_groups=2)}, {"cluster": nn.Cluster(sites=2, sync_freq=2)}]
)
def test_groups_have_environments_of_their_own(topology: dict[str, Any]) -> None:
    agent = new_agent()
    before = {name: value.copy() for name, value in agent.algorithm.params.items()}
    settings = {"steps": 160, "environments": 2, "rollout_steps": 4, "progress": False, **topology}
    with connect(workers=2) as client:
        train_in_groups(agent, "CartPole-v1", client=client, **settings)
    assert all((agent.algorithm.params[name] != value).any() for name, value in before.items())


@pytest.mark.parametrize(("groups", "workers"), [(1, 2), (2, 1)])
def test_each_learner_has_actors_of_its_own(groups: int, workers: int) -> None:
    """Each Dask worker has one thread, of a learner; its actors are created meanwhile, and end with the run."""
    agent = new_agent(rl.IMPALA)
    with connect(workers=2) as client:
        result = train_in_groups(
            *(agent, "CartPole-v1"), groups=groups, workers=workers, actors=2, steps=2 * 2 * 10 * 20, client=client,
            environments=2, rollout_steps=10, max_staleness=2, progress=False,
        )  # fmt: skip
        ages = [row["staleness"] for row in result.history if "staleness" in row]
        assert 0 < max(ages) <= 2
        wait_until(lambda: not client.run_on_scheduler(actor_keys))  # the learners' clients tell it in a message


def actor_keys(dask_scheduler: Any) -> list[str]:
    """Return the keys of the actors that there are; runs on the scheduler."""
    return [str(key) for key in dask_scheduler.tasks if "dsinga-actor" in str(key)]


class Deadly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A CartPole whose process is killed in the first one's step 30."""

    def __init__(self, folder: str):
        super().__init__(gymnasium.make("CartPole-v1"))
        self._folder, self._steps = folder, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 30:
            try:
                Path(self._folder, "killed").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return self.env.step(action)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "groups", "workers", "actors"),
    [(rl.IMPALA, 1, 2, 1), (rl.IMPALA, 2, 1, 2), (rl.A2C, 1, 2, 0), (rl.A2C, 2, 1, 0)],
)
def test_a_killed_process_is_survived(tmp_path: Path, kind: Any, groups: int, workers: int, actors: int) -> None:
    agent = new_agent(kind)
    with connect(workers=2, separate_processes=True) as client:
        before = set(client.run(os.getpid).values())
        result = train_in_groups(
            *(agent, functools.partial(Deadly, str(tmp_path))), groups=groups, workers=workers, actors=actors,
            steps=6_000, client=client, environments=2, rollout_steps=10, progress=False,
        )  # fmt: skip
        assert (tmp_path / "killed").exists()
        assert set(client.run(os.getpid).values()) != before
    assert np.isfinite(result.history[:, "loss"][-1])


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"environments": 2, "rollout_steps": 4, "workspace": tmp_path, "progress": False}
    settings |= {"checkpoint_every": 16, "log_every": 24}
    first, second = new_agent(), new_agent()
    with connect(workers=1) as client:
        train_in_groups(first, "CartPole-v1", client=client, steps=8 * 6, **settings)
        assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["step2", "step4", "step6"]
        again = train_in_groups(second, "CartPole-v1", client=client, steps=8 * 6, resume=True, **settings)
        assert_same(second.algorithm.params, first.algorithm.params)
        more = train_in_groups(second, "CartPole-v1", client=client, steps=8 * 9, resume="auto", **settings)
    assert [[row["step"] for row in result.history] for result in (again, more)] == [[3, 6], [3, 6, 9]]
    restored = new_agent()
    for folder, agent in ((tmp_path, second), (tmp_path / "checkpoint" / "step6", first)):
        restored.restore(folder)
        assert_same(restored.algorithm.params, agent.algorithm.params)
    assert any((second.algorithm.params[name] != value).any() for name, value in first.algorithm.params.items())
    x = nn.Input(shape=4, name="observation")
    dqn = rl.Agent(rl.DQN(rl.Model(nn.Model(x, nn.Dense(2)(x))), SPACES))
    refused(lambda: dqn.restore(tmp_path), "step9 is no", "DQN goes on")


A3C = str(ROOT / "datasets" / "cartpole" / "a3c.conf")
SHORT = ["train_steps=1024", "reinforcement.rollout_steps=8", "reinforcement.evaluation_episodes=2"]


@pytest.mark.ci
def test_the_cluster_of_a_job_says_that_worker_groups_learn(tmp_path: Path) -> None:
    """Rows are of updates; the evaluation is in the history and in the file; a resumed run has both."""
    with connect(workers=2) as client:
        result = rl.train(dsinga.load(A3C, SHORT), client=client, workspace=tmp_path, progress=False)
        assert result.history[-1]["phase"] == "test"
        assert result.history == read_metrics(tmp_path / "metrics.jsonl")
        assert "test, mean return" in repr(result)
        assert result.step == 1024
        job = dsinga.load(A3C, [*SHORT, "train_steps=2048"])
        again = rl.train(job, client=client, workspace=tmp_path, resume=True, progress=False)
    assert [row["step"] for row in again.history.phase("test")] == [8, 16]
    trained = trained_agent(job, tmp_path / "checkpoint")
    assert_same(trained.algorithm.params, again.agent.algorithm.params)


class Preparing(rl.Agent):
    """An agent that prepares experience."""

    def learn(self, batch: Any) -> dict[str, float]:
        return super().learn(batch)


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (new_agent(rl.REINFORCE), {}, "worker groups learn by A2C, PPO or IMPALA, not by REINFORCE"),
        (new_agent(rl.PPO), {"actors": 1}, "older params, for which PPO does not correct; learn by IMPALA"),
        (
            new_agent(rl.PPO, minibatches=3),
            {"environments": 2, "rollout_steps": 5},
            "10 steps cannot be divided into 3 equal minibatches",
        ),
        (new_agent(), {"workers": 0}, "workers is 0; give a whole number of at least 1"),
        (new_agent(), {"cluster": {"nserver_groups": 2}}, "'nserver_groups': 2}; give dsinga.job.ClusterConf"),
        (new_agent().algorithm, {}, "takes an agent: give rl.Agent.algorithm., not A2C"),
        (new_agent(), {"n_envs": 2}, "rl.train has no argument 'n_envs'; use environments"),
        (Preparing(new_agent().algorithm), {}, "worker groups do not call the method learn of Preparing"),
    ],
)
def test_what_cannot_be_trained_in_groups_is_refused(agent: Any, settings: dict[str, Any], message: str) -> None:
    refused(lambda: train_in_groups(agent, "CartPole-v1", **{"steps": 100, **settings}), message)
