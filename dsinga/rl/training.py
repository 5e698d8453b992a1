"""Trains an agent in dsinga's training loop, with its metrics, evaluations, checkpoints and resumed runs."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code
from dsinga.checkpoint import port
from dsinga.engine.engine import Engine, Snapshot, StepReport
from dsinga.extensions import Extension, LoopView, OnMetric, check_extensions, create_extensions
from dsinga.job import ClusterConf, Job, Phase, training_phases
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.loop.initial_state import RunOptions, check_beginning, find_checkpoint, put_params
from dsinga.loop.run_loop import TrainedParams, run_to_end
from dsinga.loop.view import Observer
from dsinga.rl.agent import Agent
from dsinga.rl.algorithms.es import ES
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import Environment, make_environments
from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.evaluation import evaluate
from dsinga.rl.from_job import agent_of, layout_of, reinforcement_of
from dsinga.rl.learning import EvolutionLearning, Learning, OffPolicyLearning, OnPolicyLearning, ReplayUpdates
from dsinga.rl.reinforcement_conf import ReinforcementConf, ReplayConf
from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory
from dsinga.training import Metrics
from dsinga.training.updater import factor_at

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

# The speed is measured over about this many seconds.
SPEED_SECONDS = 1.0


class AgentEngine(Engine):
    """Lets the training loop train an agent, one rollout at a time.

    The last rollout can exceed the run's end. A training row has the latest episodes' mean return and length, and the
    last updates' metrics. A checkpoint includes environments and replay memory, so a run continues bit for bit.
    """

    def __init__(self, job: Job, learning: Learning, environment: Environment):
        assert job.reinforcement is not None
        self.job = job
        self._conf, self._learning, self._environment = job.reinforcement, learning, environment
        self._algorithm = learning.agent.algorithm
        self.nets = {Phase.kTrain: self._algorithm.net.net}  # the net has the layers of the algorithm
        self._metrics: Mapping[str, float] = {}  # metrics of the last updates
        self._episodes, self._summary = -1, dict[str, float]()  # how many have ended, and their means
        self._speeds: deque[tuple[int, float]] = deque()  # steps and seconds of the last rollouts
        self._factors: Mapping[int, float] = {}
        self._factor, self._is_closed = 1.0, False
        self._step = learning.statistics.steps

    @property
    def step(self) -> int:
        """The environment steps reported so far."""
        return self._step

    @property
    def phases(self) -> Collection[Phase]:
        """The phases of the run: training, and test if the job has evaluations."""
        return training_phases(self.job)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state before :meth:`open`. Raises UserError if the saved run had other environments or actors."""
        saved = state["layout"]
        for name, value in layout_of(self._conf).items():
            if saved.get(name, value) != value:
                raise UserError(
                    f"the saved run had {name} {saved[name]!r}, this one has {value!r}; resume with the same, or begin "
                    "a new run with agent.restore(folder of the saved run)"
                )
        self._learning.restore(state["learning"])
        self._step = self._learning.statistics.steps

    def train(self, stop: int) -> Sequence[StepReport]:
        """Collect a rollout, and learn from it."""
        self._use_factor()
        begun = time.perf_counter()
        self._metrics = self._learning.advance(self._conf.rollout_steps)
        seconds = time.perf_counter() - begun
        steps = self._learning.statistics.steps - self.step
        self._speeds.append((steps, seconds))
        while len(self._speeds) > 1 and sum(seconds for _, seconds in self._speeds) > SPEED_SECONDS:
            self._speeds.popleft()
        self._step += steps
        metrics = {name: (float(value), 1.0) for name, value in self._metrics.items()}
        return [StepReport(metrics, {"total": seconds}, steps)]

    @property
    def samples_per_second(self) -> float:
        """Environment steps per second."""
        steps, seconds = map(sum, zip(*self._speeds, strict=True)) if self._speeds else (0, 0.0)
        return steps / max(seconds, 1e-9)

    def reach(self) -> tuple[int, float]:
        """Estimate the step after one more rollout, and its seconds, from the last rollout."""
        steps, seconds = self._speeds[-1] if self._speeds else (1, 0.0)
        return self.step + steps, seconds

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Return a history row's figures: current ones for training, else the means of ``sums``."""
        if phase != "train":
            return super().means(phase, sums)
        statistics = self._learning.statistics
        if statistics.episodes != self._episodes:  # this is asked for after each rollout
            self._episodes, self._summary = statistics.episodes, statistics.summary()
        return {**self._summary, **self._metrics, "env_steps_per_second": self.samples_per_second}

    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Return the sums of returns and lengths of ``batches`` episodes, by default (0) the job's number."""
        episodes = batches or self._conf.evaluation_episodes
        result = evaluate(self._learning.agent, self._environment, episodes, seed=self.job.seed)
        return {
            "episode_return": (float(result.returns.sum()), episodes),
            "episode_length": (float(result.lengths.sum()), episodes),
        }

    def params(self) -> ParamArrays:
        """Return copies of the algorithm's params."""
        return {name: array.copy() for name, array in self._algorithm.params.items()}

    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return copies of params and updater state, without environments and replay memory (see :meth:`state`)."""
        state = self._algorithm.updater.state
        return self.params(), {
            name: {slot: array.copy() for slot, array in slots.items()} for name, slots in state.items()
        }

    def state(self) -> Mapping[str, Any]:
        """Return the state of learning, and the settings that a resumed run must share."""
        return {"learning": self._learning.state(), "layout": layout_of(self._conf)}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the next update; the schedule counts updates, not steps."""
        return self._algorithm.updater.rate(self._algorithm.updater.steps)

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate of a rollout's updates by the factor at its first step."""
        self._factors = factors

    use_rate_factors = set_rate_factors

    def _use_factor(self) -> None:
        factor = factor_at(sorted(self._factors.items()), self.step)
        if factor != self._factor:
            self._factor = factor
            for updater in self._algorithm.updaters:
                updater.set_rate_factors({0: factor})

    def close(self, message: str | None = None) -> None:
        """Free the environments or release the actors."""
        if not self._is_closed:
            self._is_closed = True
            self._learning.close()


# Metrics of episodes and of rollouts; some occur with remote actors only.
EPISODES = ("episode_return", "episode_length")
OF_ROLLOUTS = ("env_steps_per_second", "staleness", "actors_in_batch")


@dataclass(frozen=True)
class AgentTask:
    """An agent, its environment, and the job with the run's settings.

    Attributes:
        in_groups: whether params are on servers, even if a single worker learns.
    """

    job: Job
    agent: Agent
    environment: Environment
    in_groups: bool = False

    @classmethod
    def of(cls, job: Job, environment: Environment | None = None, in_groups: bool = False) -> AgentTask:
        """Make a job's agent, optionally for another environment; return both as a task."""
        environment = reinforcement_of(job).environment if environment is None else environment
        with contextlib.closing(make_environments(environment, 1)) as environments:
            return cls(job, agent_of(job, environments.spaces), environment, in_groups)

    @property
    def has_groups(self) -> bool:
        """Whether worker groups train the agent."""
        return self.in_groups or has_groups(self.job)

    def check(self) -> None:
        """Raise UserError if the algorithm does not support the job's actors, groups or replay memory."""
        conf, algorithm = reinforcement_of(self.job), self.agent.algorithm
        name = type(algorithm).__name__
        if conf.num_actors and isinstance(algorithm, ES):
            raise conf.error(
                f"{name} learns from environments in this process, not from actors; leave actors out", "num_actors"
            )
        if algorithm.recurrence is not None and (self.has_groups or conf.central_inference):
            raise conf.error(
                "an agent whose model carries hidden states learns in this process, perhaps from actors that choose "
                "the actions; leave groups and central_inference out"
            )
        replay = conf.replay_conf or ReplayConf()
        if not algorithm.on_policy and replay.learn_after > self.job.train_steps:
            raise replay.error(
                f"learning begins after {replay.learn_after} steps (learn_after), but the run has "
                f"{self.job.train_steps}: lower the one or raise the other",
                "learn_after",
            )
        if not algorithm.on_policy and conf.num_actors:
            _check_replay_with_actors(conf, replay, name)

    def metric_names(self) -> dict[str, Sequence[str]]:
        """Return the names of the metrics that the run will report, by phase."""
        names: dict[str, Sequence[str]] = {"test": EPISODES} if Phase.kTest in training_phases(self.job) else {}
        algorithm = self.agent.algorithm
        if algorithm.metric_names and not any(map(is_user_code, (type(self.agent), type(algorithm)))):
            names["train"] = (*EPISODES, *OF_ROLLOUTS, *algorithm.metric_names)
        return names


def _check_replay_with_actors(conf: ReinforcementConf, replay: ReplayConf, name: str) -> None:
    """Raise UserError for settings that do not work with a replay memory and actors."""
    if conf.central_inference:
        raise conf.error(
            f"{name} learns from a replay memory, for which actors choose their actions; leave central_inference out",
            "central_inference",
        )
    steps = conf.rollout_steps * conf.num_environments
    if replay.capacity < steps:
        raise replay.error(
            f"a rollout of an actor has {steps} steps, but the replay memory keeps {replay.capacity} (capacity): lower "
            "rollout_steps or environments, or raise capacity",
            "capacity",
        )
    if replay.n_steps > conf.rollout_steps:
        raise replay.error(
            f"a transition of {replay.n_steps} steps (n_steps) is longer than a rollout of an actor, of "
            f"{conf.rollout_steps}: lower n_steps or raise rollout_steps",
            "n_steps",
        )


def has_groups(job: Job) -> bool:
    """Whether a job has more than one worker, as with ``cluster { nworker_groups: 2 }``."""
    cluster = job.cluster or ClusterConf()
    return max(cluster.nworker_groups, cluster.nworkers_per_group) > 1


class ReturnReached(Extension):
    """Ends training once an evaluation's mean return is at least ``value``."""

    def __init__(self, value: float):
        self._value = value
        self.trigger = OnMetric(f"test/{EPISODES[0]}")

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its last evaluation reached the value."""
        if loop.step and loop.metrics.get(f"test/{EPISODES[0]}", -np.inf) >= self._value:
            self.run(loop)

    def run(self, loop: LoopView) -> None:
        """End training if the newest evaluation reached the value."""
        reached = loop.metrics[f"test/{EPISODES[0]}"]
        if reached >= self._value:
            loop.stop(f"the mean return {reached:.4g} of an evaluation has reached {self._value:g}")


def stopping_rules(job: Job) -> list[Extension]:
    """Return the extension that ends training at the job's ``stop_return``, if it is set."""
    value = reinforcement_of(job).stop_return
    return [] if value is None else [ReturnReached(value)]


@cleared_frames("dsinga")
def train_agent(task: AgentTask, client: Client | None, observer: Observer, options: RunOptions) -> TrainedParams:
    """Train an agent in this process, with actors on the cluster of ``client`` if the job has any.

    Raises UserError before training for bad input, RunError if an environment fails, Diverged if a param is no longer
    finite, Cancelled if ``options.cancelled`` is set.
    """
    started, cancellation = time.perf_counter(), Cancellation(options.cancelled)
    job = task.job
    if job.test_freq and not job.test_after:  # the params before the first step are not worth an evaluation
        job = job.replace(test_after=job.test_freq)
    everything = [*create_extensions(job, options.extensions), *stopping_rules(job)]
    check_extensions(everything, job, {}, options.workspace, metrics=task.metric_names())
    with deferred_interrupts(cancellation), contextlib.ExitStack() as stack:
        begin = _read_beginning(task, options) if options.resume else _begin_anew(task, options)
        engine = AgentEngine(job, _learning_of(task, client), task.environment)
        stack.callback(engine.close)
        if begin.loop:
            engine.restore(begin.loop["engine"])
        observer.begin(begin.step)
        outcome = run_to_end(engine, begin, observer, everything, options, "an agent", cancellation, started)
    task.agent.algorithm.take_params(outcome.params)
    return outcome


def _begin_anew(task: AgentTask, options: RunOptions) -> Snapshot:
    """Set the params with which a run begins: the agent's, a checkpoint's, or given ones."""
    algorithm, job = task.agent.algorithm, task.job
    if options.params or job.checkpoint_path:
        if not algorithm.on_policy:
            name = type(algorithm).__name__
            raise UserError(f"an agent of {name} does not begin with params alone; use agent.restore(folder)")
        values = dict(algorithm.params)
        if job.checkpoint_path:
            values |= port({name: array.shape for name, array in values.items()}, job.checkpoint_path, options.roots)
        put_params(values, options.params or {})
        algorithm.take_params(values)
    return Snapshot(0, algorithm.params)


def _read_beginning(task: AgentTask, options: RunOptions) -> Snapshot:
    """Return the checkpoint from which a run resumes. Raises UserError if none fits the job."""
    path, checkpoint = find_checkpoint(options.workspace, options.resume)
    if "engine" not in checkpoint.loop:
        raise UserError(f"{path} has no checkpoint of rl.train; agent.restore reads those of agent.save")
    check_beginning(path, checkpoint, task.job, task.agent.algorithm.net.net.params)
    return Snapshot(checkpoint.step, checkpoint.params, checkpoint.state, checkpoint.loop)


def _learning_of(task: AgentTask, client: Client | None) -> Learning:
    """Return the loop in which the agent learns: rollouts, replay memory, evolution, or remote actors."""
    conf, agent, job = reinforcement_of(task.job), task.agent, task.job
    if client is not None:
        from dsinga.rl.remote.actor_learning import RemoteReplayLearning, create_remote_learning
        from dsinga.rl.remote.actor_pool import ActorPool  # imports Dask

        pool = ActorPool(
            client, agent, task.environment, actors=conf.num_actors, environments=conf.num_environments, seed=job.seed
        )
        if agent.algorithm.on_policy:
            return create_remote_learning(agent, pool, conf)
        with contextlib.closing(make_environments(task.environment, 1)) as environments:
            memory = _memory_of(conf, environments.spaces)
        updates = ReplayUpdates(agent, memory, **_times_of(task.job))
        return RemoteReplayLearning(agent, pool, updates, max_staleness=conf.max_staleness)
    environments = make_environments(task.environment, conf.num_environments, seed=job.seed)
    collector = Collector(environments, agent.hidden_states(environments.count))
    if isinstance(agent.algorithm, ES):
        return EvolutionLearning(agent, collector)
    if agent.algorithm.on_policy:
        return OnPolicyLearning(agent, collector)
    return OffPolicyLearning(agent, collector, _memory_of(conf, collector.environments.spaces), **_times_of(job))


def _memory_of(conf: ReinforcementConf, spaces: Spaces) -> ReplayMemory:
    replay = conf.replay_conf or ReplayConf()
    kind = PrioritizedReplay if replay.prioritized else ReplayMemory
    return kind(spaces, replay.capacity, count=conf.num_environments, n=replay.n_steps, discount=conf.discount)


def _times_of(job: Job) -> dict[str, int]:
    replay = reinforcement_of(job).replay_conf or ReplayConf()
    names = "batch_size", "learn_every", "learn_after"
    return {**{name: getattr(replay, name) for name in names}, "seed": job.seed}
