"""Options that several commands have, and what they stand for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # commands import what they run when they run: --help is there at once
    from dsinga.job import Job

Command = Callable[..., Any]

CHECKPOINT = click.option(
    "--checkpoint", required=True, help="A checkpoint: step folder, checkpoint folder or .safetensors file."
)


def _import_files(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> None:
    if not paths:
        return
    import importlib

    from dsinga.registry import import_file

    for room in ("dsinga.api", "dsinga.data.importers"):  # what is ours comes first, so that a user's own replaces it
        importlib.import_module(room)
    for path in paths:
        import_file(path)


IMPORT = click.option(
    "--import", "imported", multiple=True, metavar="FILE", callback=_import_files, expose_value=False,
    help="A Python file that registers layers and others of one's own.",
)  # fmt: skip


def job_options(command: Command) -> Command:
    """Give the command a job: ``conf``, and what it is read with, ``data_root`` and ``overrides``."""
    for option in (
        IMPORT,
        click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a field of the job."),
        click.option("--data-root", help="Where relative paths of the job are looked up last."),
        click.argument("conf", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def cluster_options(command: Command) -> Command:
    """Give the command the workers that run it: ``scheduler``, ``scheduler_file`` and ``workers``."""
    for option in (
        click.option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler; default: in this process."),
        click.option("--scheduler-file", help="The file that `dask scheduler --scheduler-file` wrote."),
        click.option("--workers", type=int, metavar="N", help="Workers in the worker group."),
    ):
        command = option(command)
    return command


def _choose_device(context: click.Context, option: click.Parameter, device: str | None) -> None:
    if device is None:
        return
    import dask.config

    context.with_resource(dask.config.set({"dsinga.device": device}))


DEVICE = click.option(
    "--device", type=click.Choice(["auto", "cpu", "gpu"]), callback=_choose_device, expose_value=False,
    help="gpu: a GPU for every worker; cpu: for none; auto [the default]: as the job's gpu lines say.",
)  # fmt: skip


def job_and_connection(
    conf: Path, options: dict[str, Any], **more: Any
) -> tuple[Job, contextlib.AbstractContextManager[Any]]:
    """Return the job, overridden by the options, and the way to the cluster they name."""
    from dsinga import api
    from dsinga.cluster import connect
    from dsinga.job import load

    job = load(conf, options["overrides"])
    if options["workers"] is not None:
        job = api.with_workers(job, options["workers"])
    return job, connect(
        scheduler=options["scheduler"],
        scheduler_file=options["scheduler_file"],
        workers=api.wanted_workers(job),
        **more,
    )
