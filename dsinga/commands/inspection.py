"""Looking at a job: its net, and the time that its iterations take or would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.commands.options import DEVICE, cluster_options, job_and_connection, job_options

if TYPE_CHECKING:
    from dsinga.net import NeuralNet, PartitionedNet


@click.command()
@click.option("--svg", type=click.Path(path_type=Path), help="Where to draw the net [default: NAME.svg].")
@click.option("--phase", default="train", show_default=True, help="Whose net: train, val or test.")
@click.option("--partitions", type=int, metavar="N", help="Cut the net for N workers, with a colour for each.")
@job_options
def show(
    conf: Path, svg: Path | None, phase: str, partitions: int | None, data_root: str | None, overrides: tuple[str, ...]
) -> None:
    """Print the layers, shapes and params of the job CONF, and draw its net."""
    from dsinga import api
    from dsinga.commands.net_tables import expected_memory, print_memory, print_net, print_parts
    from dsinga.job import load

    job = load(conf, overrides)
    net: NeuralNet | PartitionedNet
    if partitions is None:
        net = api.build_net(job, phase, data_root=data_root)
        print_net(net)
    else:
        net = api.partition_net(job, partitions, phase, data_root=data_root)
        print_parts(net)
    if phase == "train":
        print_memory(expected_memory(job, net, data_root))
    svg = svg or Path(f"{job.name}.svg")
    svg.write_text(net._repr_html_(), encoding="utf-8")
    click.echo(f"drawn to {svg}")


@click.command()
@click.option(
    "--steps",
    default=50,
    type=click.IntRange(min=1),
    show_default=True,
    help="Iterations to measure, after the warm-up.",
)
@click.option("--processes", is_flag=True, help="A process for each worker instead of a thread.")
@click.option("--synthetic", is_flag=True, help="Make records of the job's shapes instead of reading its stores.")
@click.option("--profile", "profiled", is_flag=True, help="Time each layer and pass too, on one worker here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@DEVICE
@job_options
@cluster_options
def bench(
    conf: Path,
    steps: int,
    processes: bool,
    synthetic: bool,
    profiled: bool,
    as_json: bool,
    data_root: str | None,
    **options: Any,
) -> None:
    """Measure training iterations of the job CONF, without tests and checkpoints."""
    import rich.console

    from dsinga.api import roots
    from dsinga.cluster.benchmark import measure
    from dsinga.planner.profile import print_profile

    job, connection = job_and_connection(conf, options, separate_processes=processes)
    with connection as client:
        figures = measure(job, client, steps=steps, synthetic=synthetic, roots=roots(job, data_root), profiled=profiled)
    if as_json:
        click.echo(json.dumps(figures))
        return
    found = figures.pop("profile", None)
    for name, figure in figures.items():
        click.echo(f"{name:20} {figure:12,.3f}")
    if found:
        print_profile(found, rich.console.Console(soft_wrap=True, highlight=False))


@click.command()
@click.option("--workers", type=int, metavar="N", help="Workers in the worker group; they need not be there.")
@click.option("--bandwidth", help="Of the network between machines, such as 1Gbit or 100MB/s [default: 1Gbit].")
@click.option("--latency", help="Of the network between machines, such as 0.1ms [default: 0.1ms].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--picture", type=click.Path(path_type=Path), help="Where to draw speedup and efficiency, as SVG.")
@job_options
def plan(
    conf: Path, bandwidth: str | None, latency: str | None, as_json: bool, picture: Path | None, **options: Any
) -> None:
    """Predict what an iteration of the job CONF takes, for each way to partition its net.

    Layers are timed on this machine once and kept in a cache (dask config dsinga.cache). With a network given, the
    workers are on machines like this one.
    """
    import rich.console

    from dsinga import api
    from dsinga.job import load
    from dsinga.planner.plan_table import print_plan
    from dsinga.planner.scaling_picture import draw_scaling

    job = load(conf, options["overrides"])
    plan = api.plan(
        job, workers=options["workers"], bandwidth=bandwidth, latency=latency, data_root=options["data_root"]
    )
    if as_json:
        click.echo(json.dumps(plan.figures()))
    else:
        print_plan(plan.figures(), rich.console.Console(soft_wrap=True, highlight=False))
    if picture:
        picture.write_text(draw_scaling(plan.speedups(), f"{plan.job}: speedup by workers"), encoding="utf-8")
        click.echo(f"drawn to {picture}", err=as_json)
