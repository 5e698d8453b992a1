"""The command ``dsinga show``: prints a net as a table of layers, or of layers' parts, and draws it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import rich.box
import rich.console
import rich.table

from dsinga.api import build_net
from dsinga.api.jobs_with_data import roots
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, register
from dsinga.commands.options import job_options, write_picture
from dsinga.cutting.cluster_topology import topology
from dsinga.cutting.description import bridge_traffic, cut_reasons, describe_parts
from dsinga.cutting.nets import partition_net
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.worker_memory import Memory, training_memory
from dsinga.job import AlgType, Job, Phase, Precision, load
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.net import NeuralNet, describe
from dsinga.passes.device_backend import DeviceBackend
from dsinga.reading.checked_job import CheckedJob
from dsinga.reading.sampler import padding_share
from dsinga.training import check_patterns, describe_settings

PADDING_BATCHES = 200  # that are read for the share of padding


def print_net(net: NeuralNet) -> None:
    """Print a line for each layer, and the size of all params."""
    rows = describe(net)
    lines = [(row.layer, row.typed, " ".join(row.sources), row.shape, " ".join(row.params), row.count) for row in rows]
    _print_table(("layer", "type", "sources", "feature", "params"), lines)
    total = sum(row.count for row in rows)
    click.echo(f"{total:,} values in params, {sum(row.bytes for row in rows) / 2**20:,.1f} MiB")


def print_parts(net: PartitionedNet) -> None:
    """Print a line for each part of each layer, why layers are not cut, and workers' params and messages."""
    rows = describe_parts(net)
    name = "{0.layer}@{0.location}".format
    lines = [(name(row), row.type, row.part, row.shape, " ".join(row.params), row.count) for row in rows]
    _print_table(("layer", "type", "computes", "feature", "params"), lines)
    for reason in cut_reasons(net):
        click.echo(reason)
    for location in range(len(net.locals)):
        count = sum(row.count for row in rows if row.location == location)
        click.echo(f"worker {location}: {count:,} values in params")
    forward, back = bridge_traffic(net)
    click.echo(f"between workers, an iteration: {forward:,} numbers forward, {back:,} back")


def print_topology(job: Job) -> None:
    """Print the worker and server groups of a job that has several."""
    if job.cluster is not None and job.cluster.nworker_groups > 1:
        click.echo(f"topology: {topology(job, 1, 1).describe()}")


def print_settings(job: Job, net: NeuralNet) -> None:
    """Print which params of the training net each of the updater's param_settings matches."""
    check_patterns(job.updater, net.params)
    for line in describe_settings(job.updater, net.params):
        click.echo(line)


def print_precision(job: Job, net: NeuralNet) -> None:
    """Print which layers of a kBF16 job compute in float32 on CPU cores."""
    layers = [node.layer for node in net.nodes if node.layer.bf16 is Bfloat16.kNothing and not node.layer.is_input]
    if job.precision is Precision.kBF16 and layers:
        click.echo(
            f"in kBF16 on CPU cores, these layers compute in float32: {', '.join(layer.name for layer in layers)}"
        )


def print_graphs(job: Job, net: NeuralNet) -> None:
    """Print how a job on GPUs captures its iterations as graphs, if that is known beforehand."""
    if job.gpu:
        backend: type[DeviceBackend] = lookup("backend", "cupy")
        if line := backend.describe_capture(job, net):
            click.echo(line)


def print_memory(memories: Sequence[Memory]) -> None:
    """Print the memory that each worker needs, by purpose."""
    for location, memory in enumerate(memories):
        name = f"worker {location}" if len(memories) > 1 else "a worker"
        parts = {part.replace("_", " "): size for part, size in memory._asdict().items() if part != "passing"}
        words = ", ".join(f"{part} {size / 2**20:,.1f}" for part, size in parts.items())
        click.echo(f"{name} needs about {memory.peak / 2**20:,.0f} MiB to train: {words}")


def _print_table(columns: Sequence[str], lines: Sequence[tuple[str, str, str, Sequence[int], str, int]]) -> None:
    table = rich.table.Table(*columns, box=rich.box.SIMPLE)
    table.add_column("values", justify="right")
    for *texts, shape, params, count in lines:
        table.add_row(*texts, " x ".join(map(str, shape)), params, f"{count:,}" if count else "")
    rich.console.Console(soft_wrap=True, highlight=False).print(table)


def expected_memory(
    job: Job, net: NeuralNet | PartitionedNet, data_root: str | os.PathLike[str] | None = None
) -> list[Memory]:
    """Predict the memory that each worker needs to train ``net``, the training net of a job.

    The list is empty for contrastive divergence, and if stores or the updater are missing.
    """
    if job.train_one_batch.alg is AlgType.kCD:
        return []
    locals_ = (net,) if isinstance(net, NeuralNet) else net.locals
    try:
        return training_memory(job, locals_, CheckedJob(job, roots(job, data_root)).reader(Phase.kTrain, len(locals_)))
    except UserError:
        return []


def describe_padding(job: Job, data_root: str | os.PathLike[str] | None = None) -> str:
    """Return the share of padding in shuffled batches and in batches by length, or "" without lengths.

    It reads the first batches, at most an epoch.
    """
    try:
        sampler = CheckedJob(job, roots(job, data_root)).reader(Phase.kTrain).sampler
    except UserError:  # stores are missing
        return ""
    if (lengths := sampler.lengths) is None:
        return ""
    batches = min(PADDING_BATCHES, -(-sampler.length // sampler.batchsize))
    orders = (order.rows(0, 0, batches * sampler.batchsize) for order in (replace(sampler, lengths=None), sampler))
    shuffled, by_length = (padding_share([*map(lengths.of, np.split(rows, batches))]) for rows in orders)
    return (
        f"padding, up to the longest sequence of a batch: {shuffled:.1%} of the steps in shuffled batches, "
        f"{by_length:.1%} by length (group_by_length: {sampler.grouped})"
    )


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
    job = load(conf, overrides)
    if job.experience is not None:
        job = lookup("engine", job.experience.engine).net_job(job)
    net: NeuralNet | PartitionedNet
    if partitions is None:
        net = build_net(job, phase, data_root=data_root)
        print_net(net)
    else:
        net = partition_net(job, partitions, phase, data_root=data_root)
        print_parts(net)
    if phase == "train":
        whole = net if isinstance(net, NeuralNet) else net.whole
        print_topology(job)
        print_settings(job, whole)
        print_precision(job, whole)
        print_graphs(job, whole)
        if padding := describe_padding(job, data_root):
            click.echo(padding)
        print_memory(expected_memory(job, net, data_root))
    try:
        picture = lookup("drawing", type(net).__name__)
    except UserError as error:  # the add-on that draws is missing
        if svg is not None:
            raise
        click.echo(str(error))
        return
    svg = svg or Path(f"{job.name}.svg")
    write_picture(svg, picture(net, job).encode())
    click.echo(f"drawn to {svg}")
