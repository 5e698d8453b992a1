"""The commands ``train``, ``test`` and ``predict``, which train, evaluate and predict a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dsinga.base.advice import join_resume, short_path
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import lookup, register
from dsinga.commands.options import CHECKPOINT, DEVICE, cluster_options, job_and_runner, job_options, where_options

if TYPE_CHECKING:
    from dsinga.job import Job

NEWEST = "newest"  # the value of --resume without a path


class _Epochs(click.IntRange):
    """A number of epochs; for a part of an epoch, the error names the field of steps."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises BadParameter for another value."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            text = f"give a whole number above 0, not {value}; for a part of an epoch write --set train_steps=N"
            self.fail(text, param, ctx)


class TrainCommand(click.Command):
    """The command ``train``; its option ``--resume`` accepts a path, ``auto`` or nothing after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with ``--resume`` joined to its word."""
        words = [f"--resume={NEWEST}" if word == "--resume" else word for word in join_resume(args)]
        return super().parse_args(ctx, words)


@register("command", "train")
@click.command(cls=TrainCommand)
@click.option("--workspace", help="Folder for metrics.jsonl and checkpoint/ [default: the job's, else NAME-workspace].")
@click.option(
    "--epochs",
    type=_Epochs(min=1),
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
    from dsinga.api.workspaces import default_workspace
    from dsinga.base.errors import RunError

    source: Any  # in place of a client
    job, source = job_and_runner(conf, options)
    workspace = workspace or str(default_workspace(job))
    if job.experience is not None:
        refuse_without_effect(lookup("engine", job.experience.engine).without_effect(job))
    result = api.train(
        job, source, epochs=epochs, workspace=workspace, data_root=data_root,
        resume=resume == NEWEST or resume or False, grain=grain, resources=resources, hosts=hosts,
        retry=retry,
    )  # fmt: skip
    click.echo(repr(result)[1:-1])
    if result.unsaved:
        raise RunError(result.unsaved)
    click.echo(f"metrics and checkpoints are in {short_path(str(result.workspace))}")


def refuse_without_effect(instead: Mapping[str, str]) -> None:
    """Raise UserError if an option of the command has no effect on an agent.

    ``instead`` says, by option, what to use.
    """
    from dsinga.api.execution import without_effect_fault

    context = click.get_current_context()
    for option in context.command.params:
        if option.name in instead and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise without_effect_fault(option.opts[0], instead[option.name])


@register("command", "test")
@click.command()
@CHECKPOINT
@click.option(
    "--phase", default="test", show_default=True, help="Phase whose records are read: train, val, test or deploy."
)
@DEVICE
@job_options
@where_options
@cluster_options
def test(
    conf: Path, checkpoint: str | None, phase: str, data_root: str | None, resources: dict[str, float],
    hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Evaluate a checkpoint of the job file CONF, and print loss and metrics.

    Prints means over all records of a phase, as JSON; for an agent the mean return and length of episodes.
    """
    from dsinga import api

    source: Any  # in place of a client
    job, source = job_and_runner(conf, options)
    if job.experience is not None:
        agents = lookup("engine", job.experience.engine)
        refuse_without_effect(agents.without_effect_on_test())
        click.echo(json.dumps(agents.test(job, checkpoint)))
        return
    metrics = api.evaluate(job, checkpoint, phase, source, data_root=data_root, resources=resources, hosts=hosts)
    click.echo(json.dumps(metrics))


@register("command", "predict")
@click.command()
@CHECKPOINT
@click.option("--layer", required=True, help="Name of the layer.")
@click.option("--out", required=True, help="Zarr store to write: a path or URL.")
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@click.option(
    "--phase", default="test", show_default=True, help="Phase whose records are read: train, val, test or deploy."
)
@DEVICE
@job_options
@where_options
@cluster_options
def predict(
    conf: Path, checkpoint: str | None, layer: str, out: str, overwrite: bool, phase: str, data_root: str | None,
    resources: dict[str, float], hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Write a layer's output for every record of a phase of the job file CONF to a zarr store.

    The store has the labels, too.
    """
    from dsinga import api
    from dsinga.data import write_store

    source: Any  # in place of a client
    job, source = job_and_runner(conf, options)
    _check_apart(out, job, data_root)
    batches = api.predict_with_labels(
        job, checkpoint, layer, phase, source, data_root=data_root, resources=resources, hosts=hosts
    )
    count = write_store(out, batches, overwrite=overwrite)
    click.echo(redact(f"wrote the feature of {layer!r} for {count} records to {out}"))


def _check_apart(out: str, job: Job, data_root: str | None) -> None:
    """Raise UserError if writing ``out`` would replace a store that the job reads."""
    from dsinga import api
    from dsinga.data import resolve
    from dsinga.data.own_inputs import overwritten

    for layer in job.net.layer:
        conf = layer.store_conf or layer.char_rnn_conf
        if conf is None or not conf.path:
            continue
        try:
            read = resolve(conf.path, api.roots(job, data_root))
        except UserError:  # a store that does not exist cannot be ``out``
            continue
        if overwritten(out, [read]):
            raise UserError(f"the job reads {out} in layer {layer.name!r}; write the feature to another store")
