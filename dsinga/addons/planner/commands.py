"""The commands ``plan`` and ``bench``, which predict and measure the time of an iteration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import rich.box
import rich.console
import rich.table

from dsinga.addons.planner.plan import site_lines
from dsinga.base.arguments import format_bytes
from dsinga.base.registry import register
from dsinga.commands.options import (
    DEVICE,
    cluster_options,
    job_and_connection,
    job_options,
    where_options,
    write_picture,
)


@register("command", "bench")
@click.command()
@click.option(
    "--steps",
    default=50,
    type=click.IntRange(min=1),
    show_default=True,
    help="Number of measured iterations, after a warm-up.",
)
@click.option("--processes", is_flag=True, help="Run each worker in a process of its own, not in a thread.")
@click.option("--synthetic", is_flag=True, help="Train on random records of the job's shapes, without its stores.")
@click.option("--profile", "profiled", is_flag=True, help="Also time each layer, with one worker in this process.")
@click.option(
    "--precision", "precisions", is_flag=True, help="Also time each layer in kFloat32 and in kBF16, on CPU cores."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@DEVICE
@job_options
@where_options
@cluster_options
def bench(
    conf: Path,
    steps: int,
    processes: bool,
    synthetic: bool,
    profiled: bool,
    precisions: bool,
    as_json: bool,
    data_root: str | None,
    resources: dict[str, float],
    hosts: list[str],
    **options: Any,
) -> None:
    """Measure the time of a training iteration of the job file CONF.

    Trains without tests and checkpoints, and prints medians.
    """
    import rich.console

    from dsinga.addons.planner.benchmark import measure
    from dsinga.addons.planner.profile import print_precisions, print_profile
    from dsinga.api import roots
    from dsinga.cluster import WorkerSelection

    job, connection = job_and_connection(conf, options, separate_processes=processes)
    with connection as client:
        figures = measure(
            job, client, steps=steps, synthetic=synthetic, roots=roots(job, data_root), profiled=profiled,
            precisions=precisions, selection=WorkerSelection(resources, hosts),
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(figures))
        return
    profile, both = figures.pop("profile", None), figures.pop("precisions", None)
    for name, figure in figures.items():
        click.echo(f"{name:20} {figure:12,.3f}")
    console = rich.console.Console(soft_wrap=True, highlight=False)
    if profile:
        print_profile(profile, console)
    if both:
        print_precisions(both["kFloat32"], both["kBF16"], console)


@register("command", "plan")
@click.command()
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Workers in the worker group, which need not exist [default: the job's, else one for each core].",
)
@click.option("--bandwidth", help="Bandwidth between machines, such as 1Gbit or 100MB/s [default: 1Gbit].")
@click.option("--latency", help="Latency between machines, such as 50us [default: 0.1ms].")
@click.option("--memory", help="Memory of each worker, such as 2GB, into which training is made to fit.")
@click.option(
    "--sites",
    type=int,
    metavar="N",
    help="Sites that average their params, each on a machine like this; bandwidth and latency are those between them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="SVG or PNG file to draw times, memory, efficiency to."
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    metavar="WORKSPACE",
    help="Compare the finished run in this workspace with its prediction, part by part.",
)
@job_options
def plan(
    conf: Path,
    bandwidth: str | None,
    latency: str | None,
    memory: str | None,
    sites: int | None,
    as_json: bool,
    picture: Path | None,
    measured: Path | None,
    **options: Any,
) -> None:
    """Predict the iteration time for each partitioning of the job file CONF.

    Layers are timed on this machine once and cached (Dask setting dsinga.cache). With a bandwidth or a latency, the
    workers are on machines like this one; without, on this machine as far as it has cores. With a memory, micro-batches
    and recomputation are chosen so that each partitioning fits, if it can. With sites, the plan also has the cost of
    averaging their params (sync_method: kMean), and the shortest period.
    """
    import rich.console

    from dsinga.addons.pictures.panels import need_matplotlib, to_bytes
    from dsinga.addons.planner import planning
    from dsinga.addons.planner.plan_picture import plan_figure
    from dsinga.addons.planner.planning import print_comparison
    from dsinga.base.errors import UserError
    from dsinga.job import load

    if picture:
        need_matplotlib()
    job, console = load(conf, options["overrides"]), rich.console.Console(soft_wrap=True, highlight=False)
    network: dict[str, Any] = {"bandwidth": bandwidth, "latency": latency, "data_root": options["data_root"]}
    if measured is not None:
        if picture or memory or sites or options["workers"] is not None:
            text = "--measured is about the workers of the run; leave --workers, --memory, --sites and --picture out"
            raise UserError(text)
        comparison = planning.compare_with_plan(job, measured, **network).figures()
        if as_json:
            click.echo(json.dumps(comparison))
        else:
            print_comparison(comparison, console)
        return
    prediction = planning.plan(job, workers=options["workers"], memory=memory, sites=sites, **network)
    if as_json:
        click.echo(json.dumps(prediction.figures()))
    else:
        print_plan(prediction.figures(), console)
    if picture:
        write_picture(picture, to_bytes(plan_figure(prediction), picture.suffix))
        click.echo(f"drawn to {picture}", err=as_json)


def print_plan(figures: Mapping[str, Any], console: rich.console.Console) -> None:
    """Print a plan from the figures of ``Plan.figures``."""
    rows = figures["alternatives"]
    workers = max(row["workers"] for row in rows)
    console.print(
        f"{figures['job']}: batch {figures['batch']}, {workers} workers: {figures['where']}; predicted per iteration:"
    )
    table = rich.table.Table(rich.table.Column("strategy", no_wrap=True), box=rich.box.SIMPLE, padding=(0, 0))
    for name in ("ms", "computing", "sent", "received", "memory", "speedup", "efficiency"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["name"], *_cells(row))
    console.print(table)
    for row in rows:
        console.print(f"  {row['name']}: {row['partitioning']}")
    if not all(row["fits"] for row in rows):
        console.print(
            f"  (!) needs more memory than a machine like this has, {format_bytes(figures['machine_bytes'])}: use a "
            "smaller batch, or machines with fewer workers or more memory"
        )
    if figures["precisions"]:
        times = ", ".join(f"{name} {ms:,.2f} ms" for name, ms in figures["precisions"].items())
        console.print(f"\nprecision: {times} for {'one worker' if workers == 1 else 'auto'}")
    console.print(f"\nsnapshots: up to {format_bytes(figures['snapshot_bytes'])} of memory in the driver's process")
    console.print(f"scaling, {figures['scaling']}:")
    console.print(_scaling(figures["curve"]))
    if "sites" in figures:
        first, last = site_lines(figures["sites"])
        console.print(first)
        console.print(_outer_steps(figures["sites"]["outer_steps"]))
        console.print(last)
    if "warning" in figures:
        console.print(f"warning: {figures['warning']}")


def _outer_steps(rows: Sequence[Mapping[str, Any]]) -> rich.table.Table:
    table = rich.table.Table("compression", box=rich.box.SIMPLE, padding=(0, 0))
    for name in ("sent", "ms", "sync_freq", "delay"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        steps = [f"{row[name]:,}" for name in ("sync_freq", "delay")]
        table.add_row(row["compression"], format_bytes(row["bytes"]), f"{row['ms']:,.2f}", *steps)
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['ms_per_iteration']:,.2f}",
        f"{row['compute_ms']:,.2f}",
        format_bytes(row["sent_bytes"]),
        format_bytes(row["received_bytes"]),
        format_bytes(row["memory_bytes"]) + ("" if row["fits"] else " (!)"),
        f"{row['speedup']:.2f}",
        f"{row['efficiency']:.0%}",
    ]


def _scaling(rows: Sequence[Mapping[str, Any]]) -> rich.table.Table:
    names = list(dict.fromkeys(row["name"] for row in rows))
    table = rich.table.Table("workers", box=rich.box.SIMPLE)
    for name in names:
        table.add_column(f"{name} ms", justify="right", no_wrap=True)
        table.add_column("eff.", justify="right", no_wrap=True)
    for workers in dict.fromkeys(row["workers"] for row in rows):
        by_name = {row["name"]: row for row in rows if row["workers"] == workers}
        cells: Iterable[str] = (
            cell
            for name in names
            for cell in (
                (f"{by_name[name]['ms_per_iteration']:,.2f}", f"{by_name[name]['efficiency']:.0%}")
                if name in by_name
                else ("", "")
            )
        )
        table.add_row(str(workers), *cells)
    return table
