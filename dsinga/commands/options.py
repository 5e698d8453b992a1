"""Defines the options that several commands share, such as for the job and the cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.base.advice import CLUSTER_OPTIONS
from dsinga.base.errors import UserError

if TYPE_CHECKING:  # commands import when they run, so that --help is quick
    from dsinga.api.runners import Runner
    from dsinga.job import Job

Command = Callable[..., Any]

CHECKPOINT = click.option(
    "--checkpoint",
    help="A checkpoint: a step folder, a checkpoint folder or a .safetensors file [default: the newest one in the "
    "job's workspace, else the job's checkpoint_path].",
)


def write_picture(path: Path, drawing: bytes) -> None:
    """Write the picture that a command draws. Raises UserError if writing fails."""
    try:
        path.write_bytes(drawing)
    except OSError as error:
        with contextlib.suppress(OSError):
            if path.is_file():  # a partial picture
                path.unlink()
        raise UserError(f"the picture {path} cannot be written: {error.strerror}; name another file") from error


def _import_files(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> None:
    if not paths:
        return
    from dsinga.base.registry import import_file

    for path in paths:
        import_file(path)


IMPORT = click.option(
    "--import", "imported", multiple=True, metavar="FILE", callback=_import_files, expose_value=False,
    help="A Python file that registers your own layers or other classes. May be repeated.",
)  # fmt: skip


def _check_overrides(ctx: click.Context, param: click.Parameter, overrides: tuple[str, ...]) -> tuple[str, ...]:
    for text in overrides:
        if text.replace("_", "").replace(".", "").isalnum():
            raise click.BadParameter(f"{text} has no value; write --set {text}=VALUE", ctx, param)
    return overrides


class JobFile(click.Argument):
    """The argument CONF, a job file; if it is missing, the error gives advice."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the path of the job file. Raises MissingParameter if there is none."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            text = "Give a job file, such as job.conf; 'dsinga example digits digits' writes one."
            raise click.MissingParameter(text, ctx=ctx, param=self) from None


def job_options(command: Command) -> Command:
    """Give a command the arguments of a job: ``conf``, ``data_root``, ``overrides`` and ``--import``."""
    for option in (
        IMPORT,
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="PATH=VALUE",
            callback=_check_overrides,
            help="Set a field of the job. May be repeated.",
        ),
        click.option("--data-root", help="Folder where relative paths of the job are looked up last."),
        click.argument("conf", cls=JobFile, type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def cluster_options(command: Command) -> Command:
    """Give a command the options of a cluster: ``scheduler``, ``scheduler_file``, ``tls_*`` and ``workers``."""
    for option in (
        click.option(
            "--scheduler",
            metavar="ADDRESS",
            help="Address of a running Dask scheduler [default: DASK_SCHEDULER_ADDRESS, else start workers here].",
        ),
        click.option(
            "--scheduler-file", help="File written by `dask scheduler --scheduler-file`, in place of an address."
        ),
        click.option("--tls-ca-file", metavar="FILE", help="CA certificates of the scheduler's TLS, as PEM."),
        click.option("--tls-cert", metavar="FILE", help="Certificate of this client, as PEM."),
        click.option("--tls-key", metavar="FILE", help="Its private key, as PEM [default: in the file --tls-cert]."),
        click.option(
            "--workers",
            type=int,
            metavar="N",
            help="Workers in each worker group [default: the job's, else one on each Dask worker].",
        ),
    ):
        command = option(command)
    return command


def _amounts(context: click.Context, option: click.Parameter, text: str | None) -> dict[str, float]:
    """Read amounts by name from an option such as "GPU=1,MEM=2e9", as in ``dask worker --resources``."""
    parts = (text or "").replace(",", " ").split()
    try:
        return {name: float(amount) for name, amount in (part.split("=") for part in parts)}
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=AMOUNT, as in GPU=1") from None


def _names(context: click.Context, option: click.Parameter, text: str | None) -> list[str]:
    return (text or "").replace(",", " ").split()


def where_options(command: Command) -> Command:
    """Give a command the options for where a run may train: ``resources`` and ``hosts``."""
    for option in (
        click.option(
            "--resources", metavar="NAME=AMOUNT,...", callback=_amounts,
            help="Dask's worker resources that each worker needs, as in GPU=1.",
        ),
        click.option(
            "--hosts", metavar="NAME,...", callback=_names,
            help="Hosts or Dask workers to train on, by name or address [default: all].",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _choose_device(context: click.Context, option: click.Parameter, device: str | None) -> None:
    if device is None:
        return
    import dask.config

    context.with_resource(dask.config.set({"dsinga.device": device}))


DEVICE = click.option(
    "--device", type=click.Choice(["auto", "cpu", "gpu"]), callback=_choose_device, expose_value=False,
    help="gpu: every worker uses a GPU; cpu: none does; auto [the default]: as the job's gpu fields say.",
)  # fmt: skip


def job_and_connection(
    conf: Path, options: dict[str, Any], *, on_all_cores: bool = False, **more: Any
) -> tuple[Job, contextlib.AbstractContextManager[Any]]:
    """Load a command's job, and connect to the cluster of its options.

    Returns the job, and a context manager that connects. A cluster started here has the job's workers or,
    ``on_all_cores``, at least one for each core.
    """
    from dask.system import CPU_COUNT

    from dsinga.api.engines import runner_of
    from dsinga.api.jobs_with_data import patience_of, wanted_workers

    job, runner = job_and_runner(conf, options)
    cluster: Any = runner_of(runner, True)
    workers = max(wanted_workers(job), CPU_COUNT if on_all_cores else 1)
    return job, cluster.open(workers=workers, patience=patience_of(job), **more)


def job_and_runner(conf: Path, options: dict[str, Any]) -> tuple[Job, Runner]:
    """Load a command's job, and decide where it computes: on a cluster, or in this process."""
    from dsinga.api.engines import find_runner
    from dsinga.api.jobs_with_data import with_workers
    from dsinga.base.registry import lookup
    from dsinga.job import load

    job = load(conf, options["overrides"])
    if options["workers"] is not None:
        job = with_workers(job, options["workers"])
    named = {name: options[name] for name in CLUSTER_OPTIONS}
    return job, lookup("engine", "cluster").named(**named) if any(named.values()) else find_runner()
