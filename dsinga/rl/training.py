"""Trains an agent in environments: progress, rows of metrics, evaluations and checkpoints."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinga.api import find_cluster
from dsinga.errors import RunError, UserError
from dsinga.job import Job, load
from dsinga.loop.cancellation import Cancellation
from dsinga.loop.interrupts import deferred_interrupts
from dsinga.loop.loop_state import resume_hint
from dsinga.monitor.run_monitor import RunMonitor
from dsinga.rl.agent import Agent
from dsinga.rl.agent_result import AgentResult
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.algorithms.es import ES
from dsinga.rl.checkpoints import has_checkpoint, restore_checkpoint, write_checkpoint
from dsinga.rl.collecting import Collector
from dsinga.rl.environments import Environment, make_environments
from dsinga.rl.evaluation import evaluate
from dsinga.rl.evolution import EvolutionLoop
from dsinga.rl.from_job import agent_of, run_settings_of, workspace_of
from dsinga.rl.off_policy import OffPolicyLoop
from dsinga.rl.on_policy import LearningLoop, OnPolicyLoop
from dsinga.rl.prioritized_replay import PrioritizedReplay
from dsinga.rl.remote.actor_pool import ActorPool
from dsinga.rl.remote.group_job import has_groups, train_job_in_groups
from dsinga.rl.remote.loops import GatheringLoop, StreamingLoop
from dsinga.rl.remote.predicting_loop import PredictingLoop
from dsinga.rl.replay import ReplayMemory
from dsinga.rl.run_settings import RunSettings, check_names, is_due
from dsinga.termination import deferred_terminations

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client


def train(
    agent: Agent | Job | str | os.PathLike[str],
    environment: Environment | None = None,
    *,
    client: Any = None,
    workspace: str | os.PathLike[str] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    progress: bool = True,
    **settings: Any,
) -> AgentResult:
    """Train an agent in environments, and return it with its history.

    Args:
        agent: an agent; or a job with ``reinforcement { }``, or the path of one.
        environment: a name, class or function, as for :func:`dsinga.rl.make_environments`; a job names one itself.
        client: a Dask client, on whose cluster the actors are, if there are any; by default as for
            :func:`dsinga.train`, where a cluster that is started here has a process for each actor.
        workspace: folder for ``metrics.jsonl`` and ``checkpoint/``; by default the job's, if it names one.
        resume: continue from the newest checkpoint in the workspace, or from the checkpoint at a path; "auto" continues
            if there is one and begins else. The result is bit-equal to that of an unbroken run.
        progress: show a progress line (in a notebook: a picture of the metrics).
        settings: the fields of :class:`dsinga.rl.run_settings.RunSettings`, such as ``steps``; of a job they replace
            the job's.

    Raises UserError for what is wrong with the job, the environment or the settings, RunError where an environment
    fails.
    """
    check_names(settings)
    if isinstance(agent, Algorithm):
        raise UserError(f"rl.train takes an agent: give rl.Agent(algorithm), not {type(agent).__name__} alone")
    if isinstance(agent, Agent):
        if environment is None or "steps" not in settings:
            raise UserError("rl.train(agent, environment, steps=...) needs an environment and the number of its steps")
        run = RunSettings(environment, **settings)
    else:
        job = agent if isinstance(agent, Job) else load(agent)
        changes = settings if environment is None else {**settings, "environment": environment}
        run = replace(run_settings_of(job), **changes)
        with contextlib.closing(make_environments(run.environment, 1)) as one:
            agent, workspace = agent_of(job, one.spaces), workspace or workspace_of(job)
        if has_groups(job):
            return train_job_in_groups(job, agent, run, client, workspace, resume, progress)
    folder, cancellation = None if workspace is None else Path(workspace).absolute(), Cancellation()
    with deferred_terminations(cancellation.event), _open_loop(agent, run, client) as loop:
        return _Run(loop, run, folder, resume, progress).train(cancellation)


class _Run:
    """One run: learning, and what happens at some of its steps."""

    def __init__(self, loop: LearningLoop, settings: RunSettings, workspace: Path | None, resume: Any, progress: bool):
        self.loop, self.settings, self.workspace = loop, settings, workspace
        if resume == "auto":
            resume = workspace is not None and has_checkpoint(workspace)
        if resume is True and workspace is None:
            raise UserError("there is nothing to resume from: give the workspace of the earlier run")
        self.source = workspace if resume is True else Path(resume) if resume else None
        self.monitor = RunMonitor(settings.name, settings.steps, workspace, self.source is not None, progress)
        self.log_every = settings.log_every or max(1, settings.steps // 100)
        self.seconds_before = 0.0

    def train(self, cancellation: Cancellation) -> AgentResult:
        """Learn up to the last step."""
        loop, settings, faults = self.loop, self.settings, list[str]()
        if self.source:
            state, faults = restore_checkpoint(self.source, loop, settings.layout())
            self.seconds_before = float(state["seconds"])
        with deferred_interrupts(cancellation), self.monitor:
            self.monitor.begin(loop.statistics.steps)
            for fault in faults:
                self.monitor.remark(fault)
            self.started = time.monotonic()
            logged, busy = loop.statistics.steps, 0.0
            cancellation.ends_in_order = self.workspace is not None
            while loop.statistics.steps < settings.steps:
                before, begun = loop.statistics.steps, time.monotonic()
                metrics = loop.advance(settings.rollout_steps)
                busy += time.monotonic() - begun
                step, at_end = loop.statistics.steps, loop.statistics.steps >= settings.steps
                if at_end or is_due(step, before, self.log_every):
                    self._log(step, metrics, (step - logged) / max(busy, 1e-9))
                    logged, busy = step, 0.0
                if at_end or is_due(step, before, settings.evaluate_every):
                    at_end |= self._evaluate(step)
                if at_end or is_due(step, before, settings.checkpoint_every):
                    self._save()
                if at_end:
                    break
                if cancellation.event.is_set() or self.monitor.workspace_fault:
                    self._save()
                    fault, hint = self.monitor.workspace_fault, resume_hint(self.workspace, step)
                    raise RunError(f"{fault}; {hint}" if fault else hint)
        if self.monitor.workspace_fault:
            self.monitor.remark(self.monitor.workspace_fault)
        return AgentResult(loop.agent, self.monitor.history, loop.statistics.steps, self.workspace)

    def _log(self, step: int, metrics: Mapping[str, float], rate: float) -> None:
        """Record a row of metrics, ``rate`` being the steps of environments in a second of learning."""
        means = self.loop.statistics.summary()
        row = {"step": step, "phase": "train", "time": self._seconds(), **means, **metrics}
        self.monitor.record({**row, "env_steps_per_second": rate})
        self.monitor.progress({**row, "env_steps_per_second": rate})

    def _evaluate(self, step: int) -> bool:
        """Record an evaluation; return whether its mean return ends the run."""
        settings = self.settings
        if not settings.evaluation_episodes:
            return False
        episodes = evaluate(self.loop.agent, settings.environment, settings.evaluation_episodes, seed=settings.seed)
        self.monitor.record({"step": step, "phase": "test", "time": self._seconds(), **episodes.summary()})
        return settings.stop_return is not None and episodes.mean_return >= settings.stop_return

    def _save(self) -> None:
        if self.workspace:
            self.monitor.check_workspace()
            run = {**self.settings.layout(), "seconds": self._seconds()}
            write_checkpoint(self.workspace, self.loop, run, self.settings.checkpoints_kept)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started


@contextlib.contextmanager
def _open_loop(agent: Agent, run: RunSettings, client: Any) -> Iterator[LearningLoop]:
    """Yield how an agent learns in a run, and close it; with actors on the cluster of ``client``."""
    with contextlib.ExitStack() as stack:
        loop: LearningLoop
        if run.actors:
            check_takes_actors(agent.algorithm)
            processes = {"workers": run.actors, "separate_processes": True}
            loop = remote_loop(agent, run, stack.enter_context(find_cluster(client).open(**processes)))
        else:
            environments = make_environments(run.environment, run.environments, seed=run.seed)
            loop = loop_of(agent, Collector(environments), run)
        yield stack.enter_context(contextlib.closing(loop))


def check_takes_actors(algorithm: Algorithm) -> None:
    """Raise UserError for an algorithm that needs environments in this process."""
    if not algorithm.on_policy or isinstance(algorithm, ES):
        raise UserError(
            f"{type(algorithm).__name__} learns from environments in this process, not from actors; leave actors out"
        )


def remote_loop(agent: Agent, run: RunSettings, client: Client) -> LearningLoop:
    """Return how an agent learns from actors, whose algorithm :func:`check_takes_actors` has accepted."""
    algorithm = agent.algorithm
    pool = ActorPool(client, agent, run.environment, actors=run.actors, environments=run.environments, seed=run.seed)
    if run.predicts_here:
        return PredictingLoop(agent, pool)
    if algorithm.corrects_older_actions:
        return StreamingLoop(agent, pool, max_staleness=run.max_staleness)
    return GatheringLoop(agent, pool)


def loop_of(agent: Agent, collector: Collector, settings: RunSettings) -> LearningLoop:
    """Return how an agent learns: from rollouts, from a replay memory, or by evolution."""
    if isinstance(agent.algorithm, ES):
        return EvolutionLoop(agent, collector)
    if agent.algorithm.on_policy:
        return OnPolicyLoop(agent, collector)
    replay, environments = settings.replay, collector.environments
    if replay.learn_after > settings.steps:
        raise UserError(
            f"learning begins after {replay.learn_after} steps (learn_after), but the run has {settings.steps}: lower "
            "the one or raise the other"
        )
    kind = PrioritizedReplay if replay.prioritized else ReplayMemory
    sizes = {"count": environments.count, "n": replay.n_steps}
    return OffPolicyLoop(
        *(agent, collector, kind(environments.spaces, replay.capacity, discount=replay.discount, **sizes)),
        batch_size=replay.batch_size,
        learn_every=replay.learn_every,
        learn_after=replay.learn_after,
        seed=settings.seed,
    )
