"""Training agents in environments: what is found as ``dsinga.rl.train`` too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from dsinga.api.engines import TrainingOptions, find_runner
from dsinga.api.execution import Execution
from dsinga.api.training import execute
from dsinga.base.errors import UserError
from dsinga.extensions import ExtensionLike
from dsinga.job import Job, NetConf, load
from dsinga.rl.agent import Agent
from dsinga.rl.agent_training import AgentResult, AgentTraining
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.environments.registered import Environment
from dsinga.rl.from_job import algorithm_fields, name_of, reinforcement_of, with_settings
from dsinga.rl.training import AgentTask


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
    """Train an agent in environments, and return it with its history.

    Args:
        agent: an agent; or a job with ``reinforcement { }``, or the path of one, as :func:`dsinga.train` takes it.
        environment: a name, class or function, as for :func:`dsinga.rl.make_environments`; a job names one itself.
        client: a Dask client, on whose cluster the actors or worker groups are, if there are any; by default as for
            :func:`dsinga.train`, where a cluster that is started here has a process for each actor.
        workspace: folder for ``metrics.jsonl`` and ``checkpoint/``; by default the job's, if it names one.
        resume: continue from the newest checkpoint in the workspace, or from the checkpoint at a path; "auto" continues
            if there is one and begins else. The result is bit-equal to that of an unbroken run.
        progress: show a progress line (in a notebook: a picture of the metrics).
        extensions: what happens between rollouts, as for :func:`dsinga.train`.
        in_groups: a worker group learns, with params on servers, even where ``groups`` and ``workers`` are 1.
        settings: further settings of the run, of which ``steps`` is needed for an agent; of a job they replace the
            job's. Steps are of all environments together.

            - ``steps``: the length of the run; ``seed`` of the environments; ``name`` of the run.
            - ``environments`` are stepped together (8), ``rollout_steps`` steps each in a rollout (128); for algorithms
              with a replay memory these are between two looks at whether a row or a checkpoint is due.
            - ``replay``: a :class:`dsinga.rl.ReplaySettings`, for algorithms that learn from a replay memory.
            - ``log_every``: steps between rows of metrics, by default about a hundred rows; ``evaluate_every`` between
              evaluations of ``evaluation_episodes`` (10; 0 for none), ``checkpoint_every`` between checkpoints, of
              which the newest ``checkpoints_kept`` stay. By default there is one of each at the end.
            - ``stop_return``: the run ends when an evaluation has this mean return.
            - ``actors`` on a Dask cluster step so many environments each; with ``central_inference`` they send
              observations, and this process chooses all actions (GA3C). With an algorithm that corrects for actions of
              older params, ``max_staleness`` updates (8) may be made between the params of a rollout and the update;
              with a replay memory all updates between two rollouts count as one.
            - ``groups`` and ``workers``: with more than one, worker groups learn on the cluster, whose topology
              ``cluster`` says, a :class:`dsinga.job.ClusterConf`; ``environments`` and ``actors`` are those of each
              worker, and rows are of updates.

    Raises UserError for what is wrong with the job, the environment or the settings, RunError where an environment
    fails.
    """
    options = TrainingOptions(workspace=workspace, resume=resume, progress=progress, extensions=extensions)
    if isinstance(agent, Algorithm):
        raise UserError(f"rl.train takes an agent: give rl.Agent(algorithm), not {type(agent).__name__} alone")
    make_task: Callable[[Job], AgentTask]
    if isinstance(agent, Agent):
        if environment is None or "steps" not in settings:
            raise UserError("rl.train(agent, environment, steps=...) needs an environment and the number of its steps")
        job = with_settings(_job_of(agent, environment), {"seed": 0, **settings})
        make_task = partial(AgentTask, agent=agent, environment=environment, in_groups=in_groups)
    else:
        job = agent if isinstance(agent, Job) else load(agent)
        reinforcement_of(job)
        job = with_settings(job, settings, environment)
        make_task = partial(AgentTask.of, environment=environment, in_groups=in_groups)
    make_training = partial(AgentTraining, make_task=make_task)
    return cast(AgentResult, execute(Execution(job, find_runner(client), options, make_training=make_training)))


def _job_of(agent: Agent, environment: Environment) -> Job:
    """Return the job that describes an agent in an environment as far as a job can."""
    conf = {"environment": name_of(environment), **algorithm_fields(agent.algorithm)}
    return Job(name="model", neuralnet=NetConf(layer=agent.algorithm.model.layers), reinforcement=conf)
