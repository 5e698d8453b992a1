"""The command line: a thin face of the rooms below."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import rich.console

import dsinga
from dsinga import api
from dsinga.cluster import connect
from dsinga.errors import RunError, UserError
from dsinga.job import Job, load
from dsinga.net import NeuralNet, PartitionedNet
from dsinga.registry import import_file
from dsinga.show import print_net, print_parts

CONF = click.argument("conf", type=click.Path(path_type=Path))
SET = click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a field of the job.")
DATA_ROOT = click.option("--data-root", help="Where relative paths of the job are looked up last.")


def _import_files(context: click.Context, option: click.Parameter, paths: tuple[str, ...]) -> None:
    for path in paths:
        import_file(path)


IMPORT = click.option(
    "--import", "imported", multiple=True, metavar="FILE", callback=_import_files, expose_value=False,
    help="A Python file that registers layers and others of one's own.",
)  # fmt: skip


def _cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler; default: in this process."),
        click.option("--scheduler-file", help="The file that `dask scheduler --scheduler-file` wrote."),
        click.option("--workers", type=int, metavar="N", help="Workers in the worker group."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dsinga.__version__, prog_name="dsinga")
def main_group() -> None:
    """Train neural networks, described as in Apache SINGA, on a Dask cluster, from zarr arrays."""


@main_group.command()
@CONF
@click.option("--workspace", help="Folder for metrics.jsonl and checkpoint/ [default: the job's, or NAME-workspace].")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the workspace.")
@click.option(
    "--grain", type=click.Choice(["round", "graph"]), default="round", show_default=True,
    help="What is one Dask task: a round of iterations, or each segment of an iteration, to look at on the dashboard.",
)  # fmt: skip
@DATA_ROOT
@SET
@IMPORT
@_cluster_options
def train(conf: Path, workspace: str | None, resume: bool, grain: str, data_root: str | None, **options: Any) -> None:
    """Train the job CONF."""
    job, connection = _job_and_connection(conf, options)
    workspace = workspace or (job.cluster and job.cluster.workspace) or f"{job.name}-workspace"
    with connection as client:
        result = api.train(job, client, workspace=workspace, data_root=data_root, resume=resume, grain=grain)
    click.echo(repr(result)[1:-1])
    click.echo(f"metrics and checkpoints are in {result.workspace}")


@main_group.command()
@CONF
@click.option("--checkpoint", required=True, help="A checkpoint: step folder, checkpoint folder or .safetensors file.")
@click.option("--phase", default="test", show_default=True, help="Whose stores: train, val or test.")
@DATA_ROOT
@SET
@IMPORT
@_cluster_options
def test(conf: Path, checkpoint: str, phase: str, data_root: str | None, **options: Any) -> None:
    """Evaluate a checkpoint over all records of a phase of the job CONF."""
    job, connection = _job_and_connection(conf, options)
    with connection as client:
        metrics = api.evaluate(job, checkpoint, phase, client, data_root=data_root)
    click.echo(json.dumps(metrics))


@main_group.command()
@CONF
@click.option("--checkpoint", required=True, help="A checkpoint: step folder, checkpoint folder or .safetensors file.")
@click.option("--layer", required=True, help="Whose feature to write.")
@click.option("--out", required=True, help="The zarr store to write: path or URL.")
@click.option("--overwrite", is_flag=True, help="Replace a store that is there.")
@click.option("--phase", default="test", show_default=True, help="Whose stores: train, val, test or deploy.")
@DATA_ROOT
@SET
@IMPORT
@_cluster_options
def predict(
    conf: Path, checkpoint: str, layer: str, out: str, overwrite: bool, phase: str, data_root: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Write the feature of a layer, and the labels, for every record of a phase to a zarr store."""
    from dsinga.data import write_store

    job, connection = _job_and_connection(conf, options)
    with connection as client:
        batches = api.predict_with_labels(job, checkpoint, layer, phase, client, data_root=data_root)
        count = write_store(out, batches, overwrite=overwrite)
    click.echo(f"wrote the feature of {layer!r} for {count} records to {out}")


@main_group.command()
@CONF
@click.option("--checkpoint", required=True, help="A checkpoint: step folder, checkpoint folder or .safetensors file.")
@click.option("--seed-text", default="", help="What the text follows [default: one character, drawn].")
@click.option("--length", default=500, show_default=True, type=click.IntRange(min=0), help="Characters to write.")
@click.option(
    "--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0),
    help="Below 1 the probable is more probable; with 0 nothing else is written.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of what is drawn.")
@DATA_ROOT
@SET
@IMPORT
def generate(
    conf: Path, checkpoint: str, seed_text: str, length: int, temperature: float, seed: int, data_root: str | None,
    overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Write a text as a net that has learned one says, such as the char-rnn CONF."""
    job = load(conf, overrides)
    text = api.generate(job, checkpoint, seed_text, length, temperature, seed, data_root=data_root)
    click.echo(seed_text + text)


@main_group.command()
@click.argument("queries")
@click.argument("database")
@click.option("--distance", type=click.Choice(["cosine", "euclidean"]), default="cosine", show_default=True)
@click.option("--at", default=10, show_default=True, type=click.IntRange(min=1), metavar="K", help="Of the K nearest.")
def retrieve(queries: str, database: str, distance: str, at: int) -> None:
    """Rank the rows of the store DATABASE for each row of QUERIES, and say how many are of its class.

    Both are zarr stores of features with labels, as dsinga predict writes them.
    """
    from dsinga.retrieval import compare_stores

    for name, value in compare_stores(queries, database, distance, at).items():
        click.echo(f"{name:24} {value:.4f}")


@main_group.command()
@CONF
@click.option("--svg", type=click.Path(path_type=Path), help="Where to draw the net [default: NAME.svg].")
@click.option("--phase", default="train", show_default=True, help="Whose net: train, val or test.")
@click.option("--partitions", type=int, metavar="N", help="Cut the net for N workers, with a colour for each.")
@DATA_ROOT
@SET
@IMPORT
def show(
    conf: Path, svg: Path | None, phase: str, partitions: int | None, data_root: str | None, overrides: tuple[str, ...]
) -> None:
    """Print the layers, shapes and params of the job CONF, and draw its net."""
    job = load(conf, overrides)
    net: NeuralNet | PartitionedNet
    if partitions is None:
        net = api.build_net(job, phase, data_root=data_root)
        print_net(net)
    else:
        net = api.partition_net(job, partitions, phase, data_root=data_root)
        print_parts(net)
    svg = svg or Path(f"{job.name}.svg")
    svg.write_text(net._repr_html_(), encoding="utf-8")
    click.echo(f"drawn to {svg}")


@main_group.command()
@CONF
@click.option(
    "--steps",
    default=50,
    type=click.IntRange(min=1),
    show_default=True,
    help="Iterations to measure, after the warm-up.",
)
@click.option("--processes", is_flag=True, help="A process for each worker instead of a thread.")
@click.option("--synthetic", is_flag=True, help="Make records of the job's shapes instead of reading its stores.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@DATA_ROOT
@SET
@IMPORT
@_cluster_options
def bench(
    conf: Path, steps: int, processes: bool, synthetic: bool, as_json: bool, data_root: str | None, **options: Any
) -> None:
    """Measure training iterations of the job CONF, without tests and checkpoints."""
    from dsinga.bench import measure

    job, connection = _job_and_connection(conf, options, separate_processes=processes)
    with connection as client:
        figures = measure(job, client, steps=steps, synthetic=synthetic, data_root=data_root)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        for name, figure in figures.items():
            click.echo(f"{name:20} {figure:12,.3f}")


@main_group.command()
@CONF
@click.option("--workers", type=int, metavar="N", help="Workers in the worker group; they need not be there.")
@click.option("--bandwidth", help="Of the network between machines, such as 1Gbit or 100MB/s [default: 1Gbit].")
@click.option("--latency", help="Of the network between machines, such as 0.1ms [default: 0.1ms].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--picture", type=click.Path(path_type=Path), help="Where to draw speedup and efficiency, as SVG.")
@DATA_ROOT
@SET
@IMPORT
def plan(
    conf: Path, bandwidth: str | None, latency: str | None, as_json: bool, picture: Path | None, **options: Any
) -> None:
    """Predict what an iteration of the job CONF takes, for each way to partition its net.

    Layers are timed on this machine once and kept in a cache (dask config dsinga.cache). With a network given, the
    workers are on machines like this one.
    """
    from dsinga.plan import network, predict
    from dsinga.planner.picture import draw_scaling
    from dsinga.planner.table import print_plan

    link = network(bandwidth, latency)
    job = load(conf, options["overrides"])
    found = predict(job, workers=options["workers"], network=link, data_root=options["data_root"])
    if as_json:
        click.echo(json.dumps(found.figures()))
    else:
        print_plan(found.figures(), rich.console.Console(soft_wrap=True, highlight=False))
    if picture:
        picture.write_text(draw_scaling(found.speedups(), f"{found.job}: speedup by workers"), encoding="utf-8")
        click.echo(f"drawn to {picture}", err=as_json)


@main_group.group()
def data() -> None:
    """Import data into zarr stores, and look at them."""


@data.command("import")
@click.argument("kind")
@click.argument("source")
@click.argument("destination")
@click.option("--overwrite", is_flag=True, help="Replace stores that are there.")
@click.option("--separator", help="csv, textfile: what stands between the numbers of a line [default: a comma].")
@click.option(
    "--no-label", "has_label", flag_value=False, default=None, help="csv, textfile, conll: no column is a label."
)
@click.option("--vocabulary", help="conll, text: what was imported of the training text, whose codes are to be used.")
@click.option("--words", flag_value=True, default=None, help="text: records are words, not characters.")
@click.option("--skip-unseen", flag_value=True, default=None, help="text: leave out what the vocabulary lacks.")
@click.option("--held-out", type=float, metavar="SHARE", help="text: the share at its end that is kept for tests.")
@click.option("--min-count", type=int, help="conll: what occurs less often in training is unknown [default: 2].")
@click.option("--encoded", flag_value=True, default=None, help="kvfile, lmdb: pixels are image files such as JPEG.")
@click.option("--size", type=int, help="imagefolder: scale every image to SIZE x SIZE.")
@IMPORT
def import_(kind: str, source: str, destination: str, overwrite: bool, **options: Any) -> None:
    """Import SOURCE, of a KIND such as mnist, cifar10, csv, kvfile, npz, mat or imagefolder, to DESTINATION."""
    from dsinga.data import import_records
    from dsinga.monitor import show_import

    given = {name: value for name, value in options.items() if value is not None}
    with show_import(f"importing {kind}") as progress:
        stores = import_records(kind, source, destination, progress=progress, overwrite=overwrite, **given)
    for location, count in stores.items():
        click.echo(f"{location}: {count} records")


@data.command()
@click.argument("store")
def info(store: str) -> None:
    """Describe a zarr store of records."""
    from dsinga.data import describe, open_store

    for name, value in describe(open_store(store)).items():
        click.echo(f"{name:18} {value}")


def _job_and_connection(
    conf: Path, options: dict[str, Any], **more: Any
) -> tuple[Job, contextlib.AbstractContextManager[Any]]:
    """Return the job, overridden by the options, and the way to the cluster they name."""
    job = load(conf, options["overrides"])
    if options["workers"] is not None:
        job = api.with_workers(job, options["workers"])
    return job, connect(
        scheduler=options["scheduler"],
        scheduler_file=options["scheduler_file"],
        workers=api.wanted_workers(job),
        **more,
    )


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn what dsinga raises for people into one message and an exit status: 2 for bad input, 1 for a broken run."""
    try:
        yield
    except (UserError, RunError) as error:
        click.echo(f"dsinga: {error}", err=True)
        sys.exit(2 if isinstance(error, UserError) else 1)


def main() -> None:
    """Run the command line; what the rooms log, such as the cut that ``partition: auto`` has chosen, goes to stderr."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("dsinga").setLevel(logging.INFO)
    with _plain_errors():
        main_group(prog_name="dsinga")


if __name__ == "__main__":
    main()
