"""Trains the agent of a job with ``reinforcement { }``: in this process, with remote actors, or in worker groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsinga.api.engines import find_runner, runner_of
from dsinga.api.execution import Execution, execute, without_effect_fault
from dsinga.api.jobs_with_data import Result, patience_of, wanted_workers
from dsinga.api.runners import RunLimits, Runner, Train, TrainingOptions
from dsinga.api.workspaces import trained_params
from dsinga.base.advice import CLUSTER_OPTIONS, option
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.extensions import ExtensionLike
from dsinga.job import Job, NetConf, load
from dsinga.loop.cancellation import Cancellation
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.run_loop import TrainedParams
from dsinga.loop.view import Observer
from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.environments.registered import Environment, make_environments
from dsinga.rl.evaluation import evaluate
from dsinga.rl.from_job import agent_of, algorithm_fields, name_of, net_job, reinforcement_of, with_settings
from dsinga.rl.training import AgentTask, has_groups, train_agent
from dsinga.training import check_params

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

    from dsinga.base.arrays import ParamArrays
    from dsinga.rl.remote.group_training import GroupTraining

# Options without effect on an agent, and what applies instead.
WITHOUT_EFFECT = {
    "data": "it learns from an environment, not from records",
    "data_root": "it reads no records",
    "epochs": "it learns from an environment, not from records: set train_steps",
    "grain": "the iterations of an agent are no Dask tasks",
}
# Options that only affect an agent's worker groups.
OF_GROUPS = {
    "hosts": "its actors are on any Dask workers",
    "resources": "its actors are on any Dask workers",
    "retry": "train again with --resume",
}


@dataclass(repr=False)
class AgentResult(Result):
    """The trained agent with its history; steps count all environments together.

    Rows of the phase "test" are evaluations of the best actions.
    """

    agent: Agent = field(kw_only=True)

    def __repr__(self) -> str:
        return self._describe(type(self.agent.algorithm).__name__, _mean_return, "no episode has ended")


def _mean_return(row: Mapping[str, Any]) -> str:
    return f"{row['phase']}, mean return {row['episode_return']:.4g}" if "episode_return" in row else ""


@register("engine", "agents")
class AgentTraining:
    """Lets :func:`dsinga.train` train an agent, with the interface of :class:`dsinga.api.execution.JobTraining`.

    Attributes:
        job: the trained job; with worker groups its steps are updates.

    Raises UserError for a fault in the job, or a way of learning that the algorithm does not support.
    """

    def __init__(self, job: Job, make_task: Callable[[Job], AgentTask] = AgentTask.of):
        self._task = make_task(job)
        self._task.check()
        self._groups: GroupTraining | None = None
        if self._task.has_groups:
            from dsinga.rl.remote.group_training import GroupTraining  # imports Dask, which only worker groups need

            self._groups = GroupTraining(self._task)
        self.job = job if self._groups is None else self._groups.job

    @staticmethod
    def without_effect(job: Job) -> dict[str, str]:
        """Return the options of :func:`dsinga.train` that an agent ignores, each with what applies instead."""
        assert job.reinforcement is not None
        if has_groups(job):
            return WITHOUT_EFFECT
        options = {**WITHOUT_EFFECT, **OF_GROUPS}
        if not job.reinforcement.num_actors:
            where = "it is trained in this process, unless num_actors or several workers are set"
            options |= dict.fromkeys(CLUSTER_OPTIONS, where)
        return options

    @staticmethod
    def without_effect_on_test() -> dict[str, str]:
        """Return the options of ``dsinga test`` that an agent ignores, each with what applies instead."""
        here = dict.fromkeys((*CLUSTER_OPTIONS, *OF_GROUPS, "workers"), "it is evaluated in this process")
        return {**WITHOUT_EFFECT, **here, "phase": "it is evaluated in its environment"}

    @staticmethod
    def check(job: Job, options: Any) -> None:
        """Raise UserError for a job setting or an option of :func:`dsinga.train` that an agent ignores."""
        job.reinforcement.check(job)
        default = type(options)()
        for name, instead in AgentTraining.without_effect(job).items():
            value = getattr(options, name, None)
            is_empty = isinstance(value, str | bool | Sequence | Mapping) and value in (getattr(default, name), [], {})
            if value is not None and not is_empty:
                raise without_effect_fault(option(name, python=name), instead)

    net_job = staticmethod(net_job)

    def metric_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the metrics that the run will report, by phase."""
        names = self._task.metric_names()
        return names if self._groups is None else {phase: names[phase] for phase in names if phase != "train"}

    @property
    def needs_cluster(self) -> bool:
        """Whether training needs a Dask cluster, for remote actors or worker groups."""
        return self._groups is not None or bool(reinforcement_of(self._task.job).num_actors)

    @contextlib.contextmanager
    def training(self, runner: Runner, options: TrainingOptions, limits: RunLimits) -> Iterator[Train]:
        """Yield a function that trains the agent, in this thread or on a cluster."""
        if not self.needs_cluster:
            yield partial(train_agent, self._task, None)
            return
        source: Any = runner_of(runner, True)
        if self._groups is not None:
            from dsinga.cluster.clients import placing_of

            placing = placing_of(options, limits)
            with source.open_run(options, limits, self.job, workers=wanted_workers(self.job)) as client:
                yield partial(self._train_groups, client, placing)
        else:
            actors = reinforcement_of(self._task.job).num_actors
            with source.open_run(options, limits, self.job, workers=actors, separate_processes=True) as client:
                yield partial(self._train_with_actors, client)

    def _train_groups(
        self, client: Client, placing: Mapping[str, Any], observer: Observer, options: RunOptions
    ) -> TrainedParams:
        """Train in worker groups on the Dask workers that ``placing`` selects."""
        from dsinga.cluster.run.driver import train

        assert self._groups is not None
        params = self._task.agent.algorithm.params if options.params is None else options.params
        options = replace(options, extensions=self._groups.extensions(options.extensions), params=params)
        outcome = train(self.job, client, observer, options, **placing)
        self._task.agent.algorithm.take_params(outcome.params)
        return outcome

    def _train_with_actors(self, client: Client, observer: Observer, options: RunOptions) -> TrainedParams:
        """Wait for enough Dask workers, then train in this thread with actors on them."""
        from dsinga.cluster.connecting.expected_workers import await_number_of_workers

        patience, conf = patience_of(self._task.job), reinforcement_of(self._task.job)
        cancellation = Cancellation(options.cancelled)
        await_number_of_workers(client, conf.num_actors, patience, cancellation, observer.waiting)
        return train_agent(self._task, client, observer, options)

    def result(self, result: Result) -> AgentResult:
        """Return the result of training together with the trained agent."""
        values = {each.name: getattr(result, each.name) for each in fields(Result)}
        if self._groups is not None:
            values["step"] = result.step * self._task.job.train_steps // self.job.train_steps
        return AgentResult(**{**values, "job": self._task.job}, agent=self._task.agent)

    @staticmethod
    def test(job: Job, checkpoint: str | os.PathLike[str] | None) -> dict[str, Any]:
        """Let a trained agent play episodes; return their mean return and length."""
        settings, agent = reinforcement_of(job), trained_agent(job, checkpoint)
        return evaluate(agent, settings.environment, max(1, settings.evaluation_episodes), seed=job.seed).summary()

    @staticmethod
    def earlier_result(
        job: Job, params: ParamArrays, history: Any, step: int, workspace: Path | None, stopped: str
    ) -> AgentResult:
        """Return the result of a run that ended before, with its trained agent."""
        agent = AgentTask.of(job).agent
        agent.algorithm.take_params(params)
        return AgentResult(job, params, history, agent.algorithm.net.net, step, workspace, stopped, agent=agent)


def trained_agent(job: Job, checkpoint: str | os.PathLike[str] | None = None) -> Agent:
    """Return a job's agent with params from a checkpoint, by default the newest in its workspace."""
    with contextlib.closing(make_environments(reinforcement_of(job).environment, 1)) as environments:
        agent = agent_of(job, environments.spaces)
    params = trained_params(job, checkpoint, [])
    check_params(agent.algorithm.net.net, params)
    agent.algorithm.params = params
    return agent


@public
def train(
    agent: Agent | Job | str | os.PathLike[str],
    environment: Environment | None = None,
    *,
    client: Any = None,
    workspace: str | os.PathLike[str] | None = None,
    resume: bool | str | os.PathLike[str] = False,
    progress: bool = True,
    extensions: Sequence[ExtensionLike] = (),
    in_groups: bool = False,
    **settings: Any,
) -> AgentResult:
    """Train an agent by reinforcement learning; return it with its history.

    Args:
        agent: an agent, a job with ``reinforcement { }``, or a job's path, as for :func:`dsinga.train`.
        environment: a name, class or function, as for :func:`dsinga.rl.make_environments`; a job names its environment.
        client: a Dask client for actors or worker groups; defaults as for :func:`dsinga.train`. A cluster started here
            has a process for each actor.
        workspace: folder for ``metrics.jsonl`` and ``checkpoint/``; defaults to the job's, if any.
        resume: continue from the workspace's newest checkpoint, or from a path. "auto" starts from scratch if there is
            none.
        progress: show a progress line (in a notebook: a picture of the metrics).
        extensions: called between rollouts, as for :func:`dsinga.train`.
        in_groups: use a worker group, with params on servers, even if ``groups`` and ``workers`` are 1.
        settings: further settings, which replace the job's. ``steps`` is required for an agent. Steps count all
            environments together.

            - ``steps``: length of the run; ``seed``: for the environments; ``name``: of the run.
            - ``environments``: how many are stepped together (8).
            - ``rollout_steps``: steps of each environment in a rollout (128). With a replay memory: steps between
              checks whether a row or checkpoint is due.
            - ``replay``: a :class:`dsinga.rl.ReplaySettings`, for algorithms with a replay memory.
            - ``log_every``: steps between rows of metrics; by default about a hundred rows.
            - ``evaluate_every``: steps between evaluations of ``evaluation_episodes`` (10; 0 for none); by default one
              at the end.
            - ``checkpoint_every``: steps between checkpoints, by default one at the end; the newest
              ``checkpoints_kept`` stay.
            - ``stop_return``: end the run when an evaluation has this mean return.
            - ``actors``: number of actors on a Dask cluster, with ``environments`` each.
            - ``central_inference``: actors send observations, and this process chooses all actions (GA3C).
            - ``max_staleness``: the most updates (8) between a rollout's params and the update, if the algorithm
              corrects for older params. With a replay memory all updates between two rollouts count as one.
            - ``groups`` and ``workers``: with more than one, worker groups learn on the cluster. ``environments`` and
              ``actors`` are per worker, and rows count updates.
            - ``cluster``: the topology of worker groups, a :class:`dsinga.job.ClusterConf`.

    With PPO, A2C and REINFORCE the seed and number of actors determine the bits. Other algorithms do not wait for slow
    actors; with a replay memory, ``max_staleness`` 0 makes them as exact. Worker groups that lose a Dask worker
    continue from their last snapshot or checkpoint, with new episodes.

    A group adds up its workers' gradients: two A2C workers with four environments each learn like one with eight. PPO
    workers draw minibatches from their own environments, so the numbers differ. Groups learn independently; A2C in
    several groups is A3C. Worker groups with ``actors`` require IMPALA.

    The learning rate's schedule counts updates. Evaluations and checkpoints happen at the end of a rollout.

    Raises UserError for a fault in the job, environment or settings, RunError if an environment fails.
    """
    options = TrainingOptions(workspace=workspace, resume=resume, progress=progress, extensions=extensions)
    if isinstance(agent, Algorithm):
        raise UserError(f"rl.train takes an agent: give rl.Agent(algorithm), not {type(agent).__name__} alone")
    if isinstance(environment, Agent):
        first = repr(agent) if isinstance(agent, str) else "environment"
        raise UserError(f"the agent comes first: rl.train(agent, {first}, ...)")
    job, make_task = _task_maker(agent, environment, settings, in_groups)
    make_training = partial(AgentTraining, make_task=make_task)
    return cast(AgentResult, execute(Execution(job, find_runner(client), options, make_training=make_training)))


def _task_maker(
    agent: Agent | Job | str | os.PathLike[str],
    environment: Environment | None,
    settings: Mapping[str, Any],
    in_groups: bool,
) -> tuple[Job, Callable[[Job], AgentTask]]:
    """Return the job with the settings of ``rl.train``, and a function that makes its AgentTask."""
    if isinstance(agent, Agent):
        if environment is None or "steps" not in settings:
            raise UserError("rl.train(agent, environment, steps=...) needs an environment and the number of its steps")
        job = with_settings(_job_of(agent, environment), {"seed": 0, **settings})
        return job, partial(AgentTask, agent=agent, environment=environment, in_groups=in_groups)
    job = agent if isinstance(agent, Job) else load(agent)
    reinforcement_of(job)
    job = with_settings(job, settings, environment)
    return job, partial(AgentTask.of, environment=environment, in_groups=in_groups)


def _job_of(agent: Agent, environment: Environment) -> Job:
    conf = {"environment": name_of(environment), **algorithm_fields(agent.algorithm)}
    return Job(name="model", neuralnet=NetConf(layer=agent.algorithm.model.layers), reinforcement=conf)
