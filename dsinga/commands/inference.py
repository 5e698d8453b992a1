"""What a trained net is used for: features, texts, and retrieval by features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.commands.options import CHECKPOINT, DEVICE, cluster_options, job_and_connection, job_options
from dsinga.errors import UserError

if TYPE_CHECKING:
    from dsinga.job import Job


@click.command()
@CHECKPOINT
@click.option("--layer", required=True, help="Whose feature to write.")
@click.option("--out", required=True, help="The zarr store to write: path or URL.")
@click.option("--overwrite", is_flag=True, help="Replace a store that is there.")
@click.option("--phase", default="test", show_default=True, help="Whose stores: train, val, test or deploy.")
@DEVICE
@job_options
@cluster_options
def predict(
    conf: Path, checkpoint: str, layer: str, out: str, overwrite: bool, phase: str, data_root: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Write the feature of a layer, and the labels, for every record of a phase to a zarr store."""
    from dsinga import api
    from dsinga.data import write_store

    job, connection = job_and_connection(conf, options)
    _check_apart(out, job, data_root)
    with connection as client:
        batches = api.predict_with_labels(job, checkpoint, layer, phase, client, data_root=data_root)
        count = write_store(out, batches, overwrite=overwrite)
    click.echo(f"wrote the feature of {layer!r} for {count} records to {out}")


def _check_apart(out: str, job: Job, data_root: str | None) -> None:
    """Raise UserError where the job reads the store ``out``, which nobody means to replace by what is made of it."""
    from dsinga import api
    from dsinga.data import resolve
    from dsinga.data.filesystem import absolute

    for layer in job.net.layer:
        conf = layer.store_conf or layer.char_rnn_conf
        if conf is None or not conf.path:
            continue
        try:
            read = resolve(conf.path, api.roots(job, data_root))
        except UserError:  # it is not there, and so is not out
            continue
        if read == absolute(out):
            raise UserError(f"the job reads {out} in layer {layer.name!r}; write the feature to another store")


@click.command()
@CHECKPOINT
@click.option("--seed-text", default="", help="What the text follows [default: one character, drawn].")
@click.option("--length", default=500, show_default=True, type=click.IntRange(min=0), help="Characters to write.")
@click.option(
    "--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0),
    help="Below 1 the probable is more probable; with 0 nothing else is written.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of what is drawn.")
@DEVICE
@job_options
def generate(
    conf: Path, checkpoint: str, seed_text: str, length: int, temperature: float, seed: int, data_root: str | None,
    overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Write a text as a net that has learned one says, such as the char-rnn CONF."""
    from dsinga import api
    from dsinga.job import load

    job = load(conf, overrides)
    text = api.generate(job, checkpoint, seed_text, length, temperature, seed, data_root=data_root)
    click.echo(seed_text + text)


@click.command()
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
