"""Remote actors: the same bits wherever they are, late and lost ones, and bounded staleness."""

import copy
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from distributed import Client, Worker

from dsinga import RunError, UserError, nn, register, rl
from dsinga.cluster import connect
from dsinga.job import Job
from dsinga.rl.algorithms.dqn import DQN
from dsinga.rl.algorithms.ppo import PPO
from dsinga.rl.collecting import Collector
from dsinga.rl.learning import ReplayUpdates
from dsinga.rl.remote.actor_learning import (
    CentralInferenceLearning,
    RemoteLearning,
    RemoteReplayLearning,
    RemoteRolloutLearning,
)
from dsinga.rl.remote.actor_pool import ActorPool
from dsinga.rl.remote.rollout_actor import pack_params
from dsinga.rl.replay_memory import PrioritizedReplay
from tests.support.late_workers import check_wait
from tests.support.refusals import refused
from tests.support.rl_cases import actor_critic
from tests.support.scheduler_messages import count_messages
from tests.support.small_job import assert_same

SPACES = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))


def new_agent() -> rl.Agent:
    return rl.Agent(PPO(actor_critic(), SPACES, epochs=1, minibatches=2, updater=nn.Adam(0.01)))


def new_pool(client: Client, agent: rl.Agent, actors: int = 3, environment: Any = "CartPole-v1") -> ActorPool:
    return ActorPool(client, agent, environment, actors=actors, environments=2, seed=1)


def new_value_agent() -> rl.Agent:
    x = nn.Input(shape=4, name="observation")
    model = rl.Model(nn.Model(x, [nn.Dense(2, name="values")(nn.Dense(8, activation="tanh")(x))]))
    return rl.Agent(DQN(model, SPACES, epsilon_steps=100, target_every=20, updater=nn.Adam(0.01)))


def new_loop(
    kind: type[Any], client: Client, actors: int = 3, environment: Any = "CartPole-v1", **settings: Any
) -> Any:
    if kind is not RemoteReplayLearning:
        agent = new_agent()
        return kind(agent, new_pool(client, agent, actors, environment), **settings)
    agent = new_value_agent()
    updates = ReplayUpdates(
        agent, PrioritizedReplay(SPACES, 300, count=2, n=2), batch_size=8, learn_every=4, learn_after=100
    )
    return kind(agent, new_pool(client, agent, actors, environment), updates, **{"max_staleness": 0, **settings})


def train(kind: type[Any], client: Client, iterations: int, kill_before: int | None = None) -> Any:
    loop = new_loop(kind, client)
    for iteration in range(iterations):
        if iteration == kill_before:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        loop.advance(16)
    return loop


def assert_same_loops(first: RemoteLearning, second: RemoteLearning) -> None:
    assert first.statistics.steps == second.statistics.steps
    assert list(first.statistics.latest) == list(second.statistics.latest)
    assert_same(second.agent.algorithm.params, first.agent.algorithm.params)


@pytest.fixture(scope="module", params=[RemoteRolloutLearning, RemoteReplayLearning])
def unbroken(request: pytest.FixtureRequest) -> RemoteLearning:
    with connect(workers=1) as client:
        return train(request.param, client, 6)


@pytest.mark.ci
@pytest.mark.process
def test_processes_and_a_killed_one_give_the_same_bits(forked: None, unbroken: RemoteLearning) -> None:
    with connect(workers=2, separate_processes=True) as client:
        loop = train(type(unbroken), client, 6, kill_before=3)
        assert loop.actors.replaced > 0
        assert_same_loops(loop, unbroken)
        loop.close()


def test_calls_through_the_scheduler_give_the_same_bits(unbroken: RemoteLearning) -> None:
    """Where the Dask workers cannot be reached from here, the scheduler passes on calls."""

    async def refuse(*_: Any) -> Any:
        raise OSError("no route to host")

    with connect(workers=1) as client:
        proxied = count_messages(client.cluster.scheduler)
        train(type(unbroken), client, 1)
        assert proxied["proxy"] == 0
        for worker in client.cluster.workers.values():
            worker.handlers["identity"] = refuse
        assert_same_loops(train(type(unbroken), client, 6), unbroken)
        assert proxied["proxy"] >= 6 * 3


@pytest.mark.parametrize("staleness", [0, 1, 5])
def test_rollouts_are_at_most_as_stale_as_allowed(staleness: int) -> None:
    with connect(workers=2) as client:
        agent = new_agent()
        loop = RemoteRolloutLearning(agent, new_pool(client, agent, actors=4), batch=2, max_staleness=staleness)
        means = [loop.advance(8)["staleness"] for _ in range(5)]
        assert 0 <= min(means) <= max(means) <= staleness
        assert (max(means) > 0) == (staleness > 0)
        assert agent.algorithm.updater.steps == 5 * 2 * 2  # of each advance 2 updates, each of 2 minibatches
        loop.close()


@pytest.mark.parametrize("staleness", [0, 1, 5])
def test_a_replay_memory_gets_rollouts_as_they_come(staleness: int) -> None:
    with connect(workers=2) as client:
        loop = new_loop(RemoteReplayLearning, client, actors=4, max_staleness=staleness)
        assert set(loop.advance(8)) == {"staleness"}  # 64 steps, of which nothing is learnt
        means = [loop.advance(8)["staleness"] for _ in range(5)]
        assert 0 <= min(means) <= max(means) <= staleness
        assert (max(means) > 0) == (staleness > 0)
        assert loop.agent.algorithm.updater.steps == (6 * 64 - 100) // 4
        assert loop.statistics.steps == loop.agent.algorithm.sampled == 6 * 64
        assert len(loop.memory) == 300
        loop.close()


def test_transitions_come_with_their_errors_as_priorities() -> None:
    with connect(workers=1) as client:
        loop = new_loop(RemoteReplayLearning, client)
        loop.advance(8)  # nothing is learnt, so that the target params are the params, as actors have them
        errors = loop.agent.algorithm.errors(loop.memory.all())
        expected = (np.abs(errors) + loop.memory.floor) ** loop.memory.alpha
        np.testing.assert_allclose(loop.memory.state()["priorities"][: len(expected)], expected, rtol=1e-4)
        loop.close()


@pytest.mark.parametrize(("staleness", "batch"), [(0, 5), (1, 3), (2, 2), (8, 1)])
def test_all_actors_are_at_work(staleness: int, batch: int) -> None:
    """An update has so many rollouts that those on their way, at most ``staleness`` updates old, are of all actors."""
    with connect(workers=2) as client:
        agent = new_agent()
        loop = RemoteRolloutLearning(agent, new_pool(client, agent, actors=5), max_staleness=staleness)
        assert loop.stream.batch == batch
        loop.advance(8)
        assert loop.advance(8)["staleness"] <= staleness
        assert sorted(loop.state()["actors"]) == list("01234")
        loop.close()


class Counts:
    """An environment without end, whose observation is the number of its steps."""

    observation_space = SPACES.observation
    action_space = SPACES.action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(4, self.steps, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("kind", [RemoteRolloutLearning, CentralInferenceLearning, RemoteReplayLearning])
def test_resumed_actors_go_on_with_their_episodes(kind: Any) -> None:
    with connect(workers=2) as client:
        first, resumed = (new_loop(kind, client, 2, Counts) for _ in range(2))
        first.advance(8)
        state = copy.deepcopy(first.state())
        first.close()
        resumed.restore(state)
        lengths = {int(number): one["environments"]["lengths"] for number, one in state["actors"].items()}
        assert max(map(max, lengths.values())) >= 8
        for number, before in lengths.items():
            assert resumed.actors.start(number, "state").result()["environments"]["lengths"] == before
        resumed.advance(8)
        assert resumed.statistics.steps >= 2 * 8 * 2 * 2
        resumed.close()


@pytest.mark.parametrize("actors", [1, 3])
def test_actions_of_all_actors_are_chosen_together(actors: int) -> None:
    """With one actor the rollouts are those of a loop in one process."""
    agent, local = new_agent(), new_agent()
    collector = Collector(rl.make_environments("CartPole-v1", 2, seed=1))
    with connect(workers=2) as client:
        loop = CentralInferenceLearning(agent, new_pool(client, agent, actors))
        for _ in range(3):
            metrics = loop.advance(16)
            local.learn(collector.rollout(local.sample, 16, local.algorithm.values))
        assert 1 <= metrics["actors_in_batch"] <= actors
        assert loop.statistics.steps >= 3 * 16 * 2 * actors
        loop.close()
    if actors == 1:
        for name, value in local.algorithm.params.items():
            np.testing.assert_allclose(agent.algorithm.params[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.ci
@pytest.mark.process
def test_actions_are_never_for_the_observations_of_a_lost_actor(forked: None) -> None:
    with connect(workers=2, separate_processes=True) as client:
        agent = new_agent()
        loop = CentralInferenceLearning(agent, new_pool(client, agent))
        loop.advance(16)
        actors, process = max(client.run(_actors_and_process).values())
        assert actors > 0
        os.kill(process, signal.SIGKILL)
        while loop.actors.replaced == 0:  # the others go on until the loss is noticed
            loop.advance(16)
        loop.advance(16)
        loop.close()


def _actors_and_process(dask_worker: Worker) -> tuple[int, int]:
    return len(dask_worker.state.actors), os.getpid()


@pytest.mark.slow
@pytest.mark.process
def test_rollouts_of_lost_actors_are_computed_elsewhere(forked: None) -> None:
    """A process is killed, then another one; no rollout is learnt twice, and none is too old."""
    with connect(workers=2, separate_processes=True) as client:
        agent = new_agent()
        loop = RemoteRolloutLearning(agent, new_pool(client, agent), max_staleness=4)
        for _ in range(2):
            loop.advance(16)
            # Not any process: that which Dask started in place of a killed one has no actors.
            processes = client.run(_actors_and_process, on_error="ignore")
            actors, process = max(processes.values())
            assert actors > 0
            replaced = loop.actors.replaced
            os.kill(process, signal.SIGKILL)
            while loop.actors.replaced == replaced:
                assert loop.advance(16)["staleness"] <= 4
            client.wait_for_workers(2, timeout=60)
        rollouts = agent.algorithm.updater.steps // 2  # of each 2 minibatches
        assert rollouts * 16 * 2 <= loop.statistics.steps <= (rollouts + 3) * 16 * 2
        loop.close()


def new_critic_agent() -> rl.Agent:
    spaces = rl.make_environments("Pendulum-v1", 1).spaces
    x = nn.Input(shape=3, name="observation")
    action = nn.Dense(1, activation="tanh", name="action")(x)
    heads = [action, *(nn.Dense(1, name=name)(nn.Concatenate()([x, action])) for name in ("first", "second"))]
    return rl.Agent(rl.TD3(rl.Model(nn.Model(x, heads)), spaces, random_steps=20, noise_correlation=0.9))


REPLAY = {"replay": rl.ReplaySettings(learn_after=16, batch_size=8), "max_staleness": 0}


@pytest.mark.parametrize(
    ("create", "task", "more"),
    [
        (new_agent, "CartPole-v1", {}),
        (new_value_agent, "CartPole-v1", REPLAY),
        (new_critic_agent, "Pendulum-v1", REPLAY),
    ],
    ids=["PPO", "DQN", "TD3"],
)
def test_a_run_with_actors_learns_and_is_resumed(
    create: Callable[[], rl.Agent], task: str, more: dict[str, Any], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"environments": 2, "rollout_steps": 8, "actors": 2, "evaluation_episodes": 2, **more}
    with connect(workers=2) as client:
        whole = rl.train(create(), task, client=client, steps=96, progress=False, **settings)
        half = rl.train(create(), task, client=client, steps=64, workspace=tmp_path, progress=False, **settings)
        assert (whole.step, half.step) == (96, 64)
        resumed = rl.train(
            *(create(), task), client=client, steps=96, workspace=tmp_path, resume=True, progress=False,
            **settings,
        )  # fmt: skip
    assert_same(resumed.agent.algorithm.params, whole.agent.algorithm.params)


def test_an_environment_that_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()

    def make() -> Any:
        with lock:
            return gymnasium.make("CartPole-v1")

    message = (
        r"^the environment cannot be sent to Dask workers \(TypeError: cannot pickle '_thread.lock' object\); open"
    )
    with connect(workers=1) as client, pytest.raises(UserError, match=message):
        rl.train(new_agent(), make, client=client, steps=10, actors=1, progress=False)


class Breaks(Counts):
    """An environment whose third step fails."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.steps == 2:
            raise ValueError("no third step")
        return super().step(action)


def test_an_environment_that_fails_ends_the_run_with_its_error() -> None:
    register("environment", "Breaks")(Breaks)
    with connect(workers=1) as client:
        agent = new_agent()
        loop = RemoteRolloutLearning(agent, new_pool(client, agent, 1, "Breaks"))
        refused(lambda: loop.advance(8), "Breaks.*no third step", error=RunError)
        loop.close()


class Waits(Counts):
    """An environment whose first step waits until it may end."""

    begun, may_end = threading.Event(), threading.Event()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.begun.set()
        assert self.may_end.wait(60)
        return super().step(action)


def test_actors_at_work_are_not_replaced_when_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    agent = new_agent()
    with connect(workers=1) as client:
        pool = new_pool(client, agent, 1, Waits)
        call = pool.start(0, "rollout", pack_params(agent.algorithm.params), 0, 0, 1)
        assert Waits.begun.wait(60)
        pool.close()
        assert call.cancelled()
        Waits.may_end.set()
    assert pool.replaced == 0
    assert "was lost" not in caplog.text


@pytest.mark.slow  # a stopped process counts as lost after 7.5 s
@pytest.mark.process
def test_an_actor_of_a_stopped_process_is_replaced(forked: None) -> None:
    """Dask's scheduler goes on listing its Dask worker."""
    agent = new_agent()
    with connect(workers=2, separate_processes=True) as client:
        pool, params = new_pool(client, agent, 1), pack_params(agent.algorithm.params)
        pool.start(0, "rollout", params, 0, 0, 4).result(60)
        (process,) = [pid for address, pid in client.run(os.getpid).items() if address == pool._actors[0][0]]
        os.kill(process, signal.SIGSTOP)
        try:
            pool.start(0, "rollout", params, 1, 0, 4).result(60)
        finally:
            os.kill(process, signal.SIGCONT)
        assert pool.replaced == 1
        pool.close()


def test_actors_wait_for_late_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(_: Job, client: Client) -> object:
        agent = rl.Agent(rl.A2C(actor_critic(), rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))))
        return rl.train(agent, "CartPole-v1", steps=80, actors=1, client=client, progress=False)

    check_wait(1, learn, tmp_path, monkeypatch)
