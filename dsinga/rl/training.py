"""Trains an agent by the training loop: what it learns from, what it begins with, and what is checked before."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code
from dsinga.checkpoint import port
from dsinga.engine.engine import Snapshot
from dsinga.extensions import Extension, LoopView, OnMetric, check_extensions, create_extensions
from dsinga.job import ClusterConf, Job, Phase, training_phases
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.loop.initial_state import RunOptions, check_beginning, find_checkpoint, put_params
from dsinga.loop.observer import Observer
from dsinga.loop.run_loop import TrainedParams, run_to_end
from dsinga.rl.agent import Agent
from dsinga.rl.agent_engine import AgentEngine
from dsinga.rl.algorithms.es import ES
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import Environment, make_environments
from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.from_job import agent_of, reinforcement_of
from dsinga.rl.learning import EvolutionLearning, Learning, OffPolicyLearning, OnPolicyLearning, ReplayUpdates
from dsinga.rl.reinforcement_conf import ReinforcementConf, ReplayConf
from dsinga.rl.replay.replay_memory import PrioritizedReplay, ReplayMemory

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

# Metrics of episodes, and those of how rollouts are taken, some of them with remote actors only.
EPISODES = ("episode_return", "episode_length")
OF_ROLLOUTS = ("env_steps_per_second", "staleness", "actors_in_batch")


@dataclass(frozen=True)
class AgentTask:
    """An agent, the environment that it learns from, and the job that says how.

    Attributes:
        job: a job with ``reinforcement``.
        agent: the agent.
        environment: as for :func:`dsinga.rl.make_environments`.
        in_groups: whether params are on servers, even where a single worker learns.
    """

    job: Job
    agent: Agent
    environment: Environment
    in_groups: bool = False

    @classmethod
    def of(cls, job: Job, environment: Environment | None = None, in_groups: bool = False) -> AgentTask:
        """Return the task that a checked job describes, perhaps in another environment.

        Raises UserError for what is wrong with the agent or the environment.
        """
        environment = reinforcement_of(job).environment if environment is None else environment
        with contextlib.closing(make_environments(environment, 1)) as environments:
            return cls(job, agent_of(job, environments.spaces), environment, in_groups)

    @property
    def has_groups(self) -> bool:
        """Whether worker groups learn."""
        return self.in_groups or has_groups(self.job)

    def check(self) -> None:
        """Raise UserError where the algorithm does not learn in the way that the job says."""
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
        """Return the names of the metrics by phase; a phase whose metrics are not known is left out."""
        names: dict[str, Sequence[str]] = {"test": EPISODES} if Phase.kTest in training_phases(self.job) else {}
        algorithm = self.agent.algorithm
        if algorithm.metric_names and not any(map(is_user_code, (type(self.agent), type(algorithm)))):
            names["train"] = (*EPISODES, *OF_ROLLOUTS, *algorithm.metric_names)
        return names


def _check_replay_with_actors(conf: ReinforcementConf, replay: ReplayConf, name: str) -> None:
    """Raise UserError for what an algorithm with a replay memory, called ``name``, does not do with remote actors."""
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
    """Whether a job has more than one worker, as ``cluster { nworker_groups: 2 }`` says."""
    cluster = job.cluster or ClusterConf()
    return max(cluster.nworker_groups, cluster.nworkers_per_group) > 1


class ReturnReached(Extension):
    """Ends training when the mean return of an evaluation is at least ``value``."""

    def __init__(self, value: float):
        self._value = value
        self.trigger = OnMetric(f"test/{EPISODES[0]}")

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its last evaluation has ended it."""
        if loop.step and loop.metrics.get(f"test/{EPISODES[0]}", -np.inf) >= self._value:
            self.run(loop)

    def run(self, loop: LoopView) -> None:
        """Compare the newest value."""
        reached = loop.metrics[f"test/{EPISODES[0]}"]
        if reached >= self._value:
            loop.stop(f"the mean return {reached:.4g} of an evaluation has reached {self._value:g}")


def stopping_rules(job: Job) -> list[Extension]:
    """Return the extension that ``stop_return`` asks for, if it does."""
    value = reinforcement_of(job).stop_return
    return [] if value is None else [ReturnReached(value)]


@cleared_frames("dsinga")
def train_agent(task: AgentTask, client: Client | None, observer: Observer, options: RunOptions) -> TrainedParams:
    """Train an agent in this process, with actors on the cluster of ``client`` if the job has any.

    The agent has the params of the outcome.

    Raises UserError before training for bad input, RunError where an environment fails, Diverged where a param is no
    longer finite, Cancelled if ``options.cancelled`` was set before the last step, and what an extension raises.
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
    """Let an agent begin with its params, those of the job's ``checkpoint_path``, or those of the options by name."""
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
    """Return the checkpoint to go on from.

    Raises UserError where there is none, or it does not fit the job.
    """
    path, checkpoint = find_checkpoint(options.workspace, options.resume)
    if "engine" not in checkpoint.loop:
        raise UserError(f"{path} has no checkpoint of rl.train; agent.restore reads those of agent.save")
    check_beginning(path, checkpoint, task.job, task.agent.algorithm.net.net.params)
    return Snapshot(checkpoint.step, checkpoint.params, checkpoint.state, checkpoint.loop)


def _learning_of(task: AgentTask, client: Client | None) -> Learning:
    """Return how the agent learns: from rollouts, from a replay memory, by evolution, or from remote actors."""
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
    """Return an empty replay memory for the environments of this process, or of an actor."""
    replay = conf.replay_conf or ReplayConf()
    kind = PrioritizedReplay if replay.prioritized else ReplayMemory
    return kind(spaces, replay.capacity, count=conf.num_environments, n=replay.n_steps, discount=conf.discount)


def _times_of(job: Job) -> dict[str, int]:
    """Return the settings of :class:`ReplayUpdates`."""
    replay = reinforcement_of(job).replay_conf or ReplayConf()
    names = "batch_size", "learn_every", "learn_after"
    return {**{name: getattr(replay, name) for name in names}, "seed": job.seed}
