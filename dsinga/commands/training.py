"""The commands ``train`` and ``test``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.advice import join_resume, short_path
from dsinga.commands.agent_options import refuse_without_effect
from dsinga.commands.options import (
    CHECKPOINT,
    DEVICE,
    cluster_options,
    job_and_connection,
    job_and_source,
    job_options,
    where_options,
)

if TYPE_CHECKING:
    from dsinga.job import Job

NEWEST = "newest"  # the value of --resume without a path


class TrainCommand(click.Command):
    """The command ``train``, whose option ``--resume`` may have a path or ``auto`` behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        words = [f"--resume={NEWEST}" if word == "--resume" else word for word in join_resume(args)]
        return super().parse_args(ctx, words)


@click.command(cls=TrainCommand)
@click.option("--workspace", help="Folder for metrics.jsonl and checkpoint/ [default: the job's, else NAME-workspace].")
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Go N times through the records, in place of the job's train_steps.",
)
@click.option(
    "--resume",
    metavar="[auto|PATH]",
    help="Continue from the newest undamaged checkpoint in the workspace, or from the checkpoint folder PATH; "
    "auto: continue if the workspace has a checkpoint, else begin.",
)
@click.option(
    "--grain", type=click.Choice(["round", "graph"]), default="round", show_default=True,
    help="A Dask task is a round of many iterations, or (slower) one segment of an iteration, as the dashboard shows.",
)  # fmt: skip
@click.option(
    "--retry", is_flag=True,
    help="Where the scheduler is lost, wait until it is started again, and go on from the newest checkpoint.",
)  # fmt: skip
@DEVICE
@job_options
@where_options
@cluster_options
def train(
    conf: Path,
    workspace: str | None,
    epochs: int | None,
    resume: str | None,
    grain: str,
    retry: bool,
    data_root: str | None,
    resources: dict[str, float],
    hosts: list[str],
    **options: Any,
) -> None:
    """Train the job file CONF.

    Metrics and checkpoints are written to the workspace.
    """
    from dsinga import api
    from dsinga.api.trained import default_workspace
    from dsinga.errors import RunError

    source: Any  # which stands for a client
    job, source = job_and_source(conf, options)
    workspace = workspace or str(default_workspace(job))
    if job.reinforcement is not None:
        from dsinga.rl.remote.group_job import has_groups

        refuse_without_effect(job.reinforcement.num_actors > 0 or has_groups(job))
        train_agent(job, source, workspace, resume == NEWEST or resume or False)
        return
    result = api.train(
        job, source, epochs=epochs, workspace=workspace, data_root=data_root,
        resume=resume == NEWEST or resume or False, grain=grain, resources=resources, hosts=hosts,
        retry=retry,
    )  # fmt: skip
    click.echo(repr(result)[1:-1])
    if result.unsaved:
        raise RunError(result.unsaved)
    click.echo(f"metrics and checkpoints are in {short_path(str(result.workspace))}")


def train_agent(job: Job, source: Any, workspace: str, resume: bool | str) -> None:
    """Train the agent that a job describes; its actors or worker groups, if any, are on the cluster ``source``."""
    from dsinga import rl

    result = rl.train(job, client=source, workspace=workspace, resume=resume)
    click.echo(repr(result)[1:-1])
    click.echo(f"metrics and checkpoints are in {short_path(str(result.workspace))}")


@click.command()
@CHECKPOINT
@click.option("--phase", default="test", show_default=True, help="Phase whose records are read: train, val or test.")
@DEVICE
@job_options
@where_options
@cluster_options
def test(
    conf: Path, checkpoint: str | None, phase: str, data_root: str | None, resources: dict[str, float],
    hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Evaluate a checkpoint of the job file CONF.

    Prints the mean loss and metrics over all records of a phase, as JSON; for an agent the mean return and length of
    episodes.
    """
    from dsinga import api

    job, connection = job_and_connection(conf, options)
    if job.reinforcement is not None:
        refuse_without_effect()
        click.echo(json.dumps(test_agent(job, checkpoint)))
        return
    with connection as client:
        metrics = api.evaluate(job, checkpoint, phase, client, data_root=data_root, resources=resources, hosts=hosts)
    click.echo(json.dumps(metrics))


def test_agent(job: Job, checkpoint: str | None) -> dict[str, float]:
    """Return the mean return and length of episodes in which the agent of a job takes its best actions."""
    from dsinga import rl
    from dsinga.rl.from_job import reinforcement_of, trained_agent

    conf, agent = reinforcement_of(job), trained_agent(job, checkpoint)
    return rl.evaluate(agent, conf.environment, max(1, conf.evaluation_episodes), seed=job.seed).summary()
