"""The command ``find-lr``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dsinga.commands.options import DEVICE, cluster_options, job_and_connection, job_options, where_options


@click.command("find-lr")
@click.option("--low", type=float, default=1e-6, show_default=True, help="The first learning rate.")
@click.option("--high", type=float, default=10.0, show_default=True, help="The last learning rate.")
@click.option("--steps", type=click.IntRange(min=10), default=100, show_default=True, help="Number of steps at most.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG file to draw the loss by learning rate to.")
@DEVICE
@job_options
@where_options
@cluster_options
def find_lr(
    conf: Path, low: float, high: float, steps: int, picture: Path | None, data_root: str | None,
    resources: dict[str, float], hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Suggest a learning rate for the job file CONF.

    Trains some steps with a rate that grows from step to step, until the loss diverges. Writes nothing to the
    workspace.
    """
    from dsinga import api
    from dsinga.job import ChangeMethod

    job, connection = job_and_connection(conf, options)
    with connection as client:
        search = api.find_learning_rate(
            job, client, low=low, high=high, steps=steps, data_root=data_root, resources=resources, hosts=hosts
        )
    click.echo(search.sentence())
    if search.suggestion is not None and job.updater.learning_rate.type is not ChangeMethod.kFixedStep:
        click.echo(f"dsinga train {conf} --set updater.learning_rate.base_lr={search.suggestion:.2g}")
    if picture:
        picture.write_text(search.draw(), encoding="utf-8")
        click.echo(f"drawn to {picture}")
