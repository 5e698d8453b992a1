"""The commands ``search`` and ``find-lr``, which look for good settings of a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.base.advice import CLUSTER_OPTIONS, how_to_resume, short_path
from dsinga.base.registry import register
from dsinga.commands.options import (
    DEVICE,
    cluster_options,
    job_and_connection,
    job_and_runner,
    job_options,
    where_options,
    write_picture,
)

if TYPE_CHECKING:
    from dsinga.addons.search.result import SearchResult


# Of a table, in characters: wider than any, so that no cell is cut; a terminal wraps long lines.
WIDTH = 1000


@register("command", "search")
@click.command()
@click.option(
    "--settings", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with values by path (YAML or JSON), or with a setting a line (CSV), in place of values of --set.",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(min=1), help="Number of settings to draw [default: all combinations].")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Determines what is drawn.")
@click.option("--monitor", help="Metric to compare by, such as val/accuracy [default: the loss of val, test or train].")
@click.option(
    "--mode", type=click.Choice(["auto", "min", "max"]), default="auto", show_default=True,
    help="Whether lower or higher values are better; auto goes by the metric's name.",
)  # fmt: skip
@click.option(
    "--halving", type=click.IntRange(min=2), metavar="FACTOR",
    help="Train all settings for a part of the steps, the best 1/FACTOR of them for FACTOR times as many, and so on.",
)  # fmt: skip
@click.option(
    "--first-rung", type=click.IntRange(min=1), metavar="N", help="Steps of that part [default: 1/(2*FACTOR)]."
)
@click.option("--asynchronous", is_flag=True, help="With --halving: do not wait for all runs of a part.")
@click.option("--workspace", help="Folder of the search [default: the job's, else NAME-search].")
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Epochs of each run, in place of train_steps.")
@click.option("--resume", is_flag=True, help="Go on with the search in the workspace.")
@click.option("--only", type=int, multiple=True, metavar="K", help="Train setting K, from 0, only. May be repeated.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG or PNG file to draw settings and curves to.")
@DEVICE
@job_options
@where_options
@cluster_options
def search(
    conf: Path, settings: Path | None, samples: int | None, workspace: str | None, only: tuple[int, ...],
    picture: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Train the job file CONF with many settings, and print them, the best first.

    A --set with several values, as in updater.momentum=0.5,0.9, tries each value; all combinations are trained, or with
    --samples some of them. uniform(LOW,HIGH), loguniform(LOW,HIGH) and randint(LOW,HIGH) are ranges. Each setting has a
    folder in the workspace, the table is search.csv there.
    """
    from dsinga.addons.pictures.panels import need_matplotlib, to_bytes
    from dsinga.addons.search import search as searching
    from dsinga.addons.search.space import parse_space, read_space
    from dsinga.base.errors import UserError

    if picture:
        need_matplotlib()  # before training
    options["overrides"], space = parse_space(options["overrides"])
    if settings is not None and space:
        raise UserError(f"give the values in {settings} or by --set, not both: {next(iter(space))} has several")
    if settings is None and not space:
        raise UserError("say what to try, as in --set updater.learning_rate.base_lr=0.01,0.1, or give --settings FILE")
    workers = options["workers"]
    connected = {name: options.pop(name) for name in CLUSTER_OPTIONS}
    job, connection = job_and_connection(
        conf, {**connected, "overrides": options.pop("overrides"), "workers": options.pop("workers")}, on_all_cores=True
    )
    workspace = workspace or (job.cluster.workspace if job.cluster else None) or f"{job.name}-search"
    with connection as client:
        result = searching.search(
            job, read_space(settings) if settings else space, client, samples=samples, workspace=workspace,
            workers=workers, only=only or None, **options,
        )  # fmt: skip
    _print(result)
    click.echo(f"metrics and checkpoints are in {short_path(str(result.workspace))}{os.sep}setting-*")
    if picture:
        write_picture(picture, to_bytes(result.figure(), picture.suffix))
        click.echo(f"drawn to {picture}")
    for state, said in (("failed", "failed"), ("cut", f"have not ended ({how_to_resume()} goes on)")):
        if count := sum(row["state"] == state for row in result):
            click.echo(f"{count} of {len(result)} settings {said}, for the reasons in the column remark")


def _print(result: SearchResult) -> None:
    import rich.box
    import rich.console
    import rich.table
    from rich.markup import escape

    from dsinga.addons.search.result import cell

    table = rich.table.Table(box=rich.box.SIMPLE)
    for name in result.columns:
        table.add_column(result.monitor if name == "score" else name.rpartition(".")[2])
    for row in result.sorted():
        table.add_row(*(escape(cell(row.get(name))) for name in result.columns))
    rich.console.Console(width=WIDTH, highlight=False).print(table)
    click.echo(result.describe_best())


@register("command", "find-lr")
@click.command("find-lr")
@click.option("--low", type=float, default=1e-6, show_default=True, help="The first learning rate.")
@click.option("--high", type=float, default=10.0, show_default=True, help="The last learning rate.")
@click.option("--steps", type=click.IntRange(min=10), default=100, show_default=True, help="Number of steps at most.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG or PNG file to draw losses by rate to.")
@DEVICE
@job_options
@where_options
@cluster_options
def find_lr(
    conf: Path, low: float, high: float, steps: int, picture: Path | None, data_root: str | os.PathLike[str] | None,
    resources: dict[str, float], hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Suggest a learning rate for the job file CONF.

    Trains some steps with a rate that grows from step to step, until the loss diverges. Writes nothing to the
    workspace.
    """
    from dsinga.addons.pictures.panels import need_matplotlib, to_bytes
    from dsinga.addons.search.learning_rate import find_learning_rate
    from dsinga.job import ChangeMethod

    if picture:
        need_matplotlib()
    source: Any  # it stands for a client
    job, source = job_and_runner(conf, options)
    result = find_learning_rate(
        job, client=source, low=low, high=high, steps=steps, data_root=data_root, resources=resources, hosts=hosts
    )
    click.echo(result.sentence())
    without_base = (ChangeMethod.kFixedStep, ChangeMethod.kSequential)  # schedules that ignore base_lr
    if result.suggestion is not None and job.updater.learning_rate.type not in without_base:
        click.echo(f"dsinga train {conf} --set updater.learning_rate.base_lr={result.suggestion:.2g}")
    if picture:
        write_picture(picture, to_bytes(result.figure(), picture.suffix))
        click.echo(f"drawn to {picture}")
