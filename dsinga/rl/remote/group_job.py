"""Trains the agent of a job whose cluster has worker groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsinga import api
from dsinga.errors import UserError
from dsinga.job import ClusterConf, Job
from dsinga.monitor.run_monitor import RunMonitor
from dsinga.rl.agent import Agent
from dsinga.rl.agent_result import AgentResult
from dsinga.rl.evaluation import evaluate
from dsinga.rl.remote.group_training import train_in_groups
from dsinga.rl.run_settings import RunSettings


def has_groups(job: Job) -> bool:
    """Whether a job has more than one worker, as ``cluster { nworker_groups: 2 }`` says."""
    cluster = job.cluster or ClusterConf()
    return max(cluster.nworker_groups, cluster.nworkers_per_group) > 1


def train_job_in_groups(
    job: Job,
    agent: Agent,
    run: RunSettings,
    client: Any,
    workspace: str | os.PathLike[str] | None,
    resume: bool | str | os.PathLike[str],
    progress: bool,
) -> AgentResult:
    """Train the agent of a job by the worker groups of its cluster; evaluate it, and return it with its history.

    Raises UserError for settings that worker groups do not have.
    """
    assert job.cluster is not None
    if run.evaluate_every or run.predicts_here:
        field = "reinforcement.predicts_here" if run.predicts_here else "test_freq"
        raise UserError(f"{field} has no effect on worker groups, whose agent is evaluated at the end; leave it out")
    result = train_in_groups(
        agent,
        run.environment,
        steps=run.steps,
        groups=job.cluster.nworker_groups,
        workers=job.cluster.nworkers_per_group,
        actors=run.actors,
        client=client,
        environments=run.environments,
        rollout_steps=run.rollout_steps,
        max_staleness=run.max_staleness,
        cluster=job.cluster,
        workspace=workspace,
        log_every=run.log_every,
        checkpoint_every=run.checkpoint_every,
        checkpoints_kept=run.checkpoints_kept,
        resume=resume,
        seed=run.seed,
        progress=progress,
    )
    if run.evaluation_episodes:
        _evaluate(agent, run, result)
    return AgentResult(agent, result.history, run.steps, None if result.workspace is None else Path(result.workspace))


def _evaluate(agent: Agent, run: RunSettings, result: api.Result) -> None:
    """Add a row of an evaluation to the history, and to the metrics file."""
    episodes = evaluate(agent, run.environment, run.evaluation_episodes, seed=run.seed)
    row = {"step": result.step, "phase": "test", "time": result.history[-1, "time"], **episodes.summary()}
    result.history.append(row)
    if result.workspace is not None:
        with RunMonitor(run.name, run.steps, Path(result.workspace), resume=True, progress=False) as monitor:
            monitor.begin(result.step)
            monitor.record(row)
