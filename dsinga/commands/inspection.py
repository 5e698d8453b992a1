"""The command ``show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, register
from dsinga.commands.options import job_options, write_picture

if TYPE_CHECKING:
    from dsinga.net import PartitionedNet


@register("command", "show")
@click.command()
@click.option("--svg", type=click.Path(path_type=Path), help="File to draw the net to [default: NAME.svg].")
@click.option("--phase", default="train", show_default=True, help="Phase whose net is shown: train, val or test.")
@click.option("--partitions", type=int, metavar="N", help="Show the net cut for N workers, in a colour for each.")
@job_options
def show(
    conf: Path, svg: Path | None, phase: str, partitions: int | None, data_root: str | None, overrides: tuple[str, ...]
) -> None:
    """Print and draw the net of the job file CONF.

    Prints its layers, shapes and params, and the memory that training needs.
    """
    from dsinga import api
    from dsinga.commands.net_tables import (
        expected_memory,
        print_graphs,
        print_memory,
        print_net,
        print_padding,
        print_parts,
        print_precision,
        print_settings,
        print_topology,
    )
    from dsinga.job import load
    from dsinga.net import NeuralNet

    job = load(conf, overrides)
    if job.experience is not None:
        job = job.experience.net_job(job)
    net: NeuralNet | PartitionedNet
    if partitions is None:
        net = api.build_net(job, phase, data_root=data_root)
        print_net(net)
    else:
        net = api.partition_net(job, partitions, phase, data_root=data_root)
        print_parts(net)
    if phase == "train":
        whole = net if isinstance(net, NeuralNet) else net.whole
        print_topology(job)
        print_settings(job, whole)
        print_precision(job, whole)
        print_graphs(job, whole)
        print_padding(job, data_root)
        print_memory(expected_memory(job, net, data_root))
    try:
        picture = lookup("hook", "picture")
    except UserError as error:  # the add-on that draws is missing
        if svg is not None:
            raise
        click.echo(str(error))
        return
    svg = svg or Path(f"{job.name}.svg")
    write_picture(svg, picture(net, job))
    click.echo(f"drawn to {svg}")
