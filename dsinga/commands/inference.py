"""The commands that use a trained net: ``predict``, ``generate``, ``translate`` and ``retrieve``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.commands.options import CHECKPOINT, DEVICE, cluster_options, job_and_source, job_options, where_options

if TYPE_CHECKING:
    from dsinga.job import Job


@click.command()
@CHECKPOINT
@click.option("--layer", required=True, help="Name of the layer.")
@click.option("--out", required=True, help="Zarr store to write: a path or URL.")
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@click.option(
    "--phase", default="test", show_default=True, help="Phase whose records are read: train, val, test or deploy."
)
@DEVICE
@job_options
@where_options
@cluster_options
def predict(
    conf: Path, checkpoint: str | None, layer: str, out: str, overwrite: bool, phase: str, data_root: str | None,
    resources: dict[str, float], hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Write the output of a layer to a zarr store.

    The store has a row for every record of a phase of the job file CONF, and the labels.
    """
    from dsinga import api
    from dsinga.data import write_store

    source: Any  # which stands for a client
    job, source = job_and_source(conf, options)
    _check_apart(out, job, data_root)
    batches = api.predict_with_labels(
        job, checkpoint, layer, phase, source, data_root=data_root, resources=resources, hosts=hosts
    )
    count = write_store(out, batches, overwrite=overwrite)
    click.echo(redact(f"wrote the feature of {layer!r} for {count} records to {out}"))


def _check_apart(out: str, job: Job, data_root: str | None) -> None:
    """Raise UserError where the job reads the store ``out``, which the command would replace."""
    from dsinga import api
    from dsinga.data import resolve
    from dsinga.data.filesystem import absolute

    for layer in job.net.layer:
        conf = layer.store_conf or layer.char_rnn_conf
        if conf is None or not conf.path:
            continue
        try:
            read = resolve(conf.path, api.roots(job, data_root))
        except UserError:  # the store does not exist, so it is not out
            continue
        if _is_within(absolute(out), read):
            raise UserError(f"the job reads {out} in layer {layer.name!r}; write the feature to another store")


def _is_within(out: str, read: str) -> bool:
    """Return whether ``out`` is the store ``read``, or a folder around it, by whatever links."""
    if "://" in out or "://" in read:
        return out == read
    out, read = os.path.realpath(out), os.path.realpath(read)
    return out == read or read.startswith(os.path.join(out, ""))


@click.command()
@CHECKPOINT
@click.option("--seed-text", default="", help="Text to continue [default: one random character].")
@click.option(
    "--length",
    default=500,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of characters or words to generate.",
)
@click.option(
    "--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0),
    help="Lower values prefer the more probable characters; 0 always takes the most probable one.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the random numbers.")
@DEVICE
@job_options
def generate(
    conf: Path, checkpoint: str | None, seed_text: str, length: int, temperature: float, seed: int,
    data_root: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Generate text with a trained net.

    CONF is the job file of a net that predicts the next character or word, such as a char-rnn.
    """
    from dsinga import api
    from dsinga.job import load

    job = load(conf, overrides)
    text = api.generate(job, checkpoint, seed_text, length, temperature, seed, data_root=data_root)
    click.echo(seed_text + text)


@click.command()
@CHECKPOINT
@click.option(
    "--input", "source", type=click.File(), default="-", help="File of sentences, one a line [default: standard input]."
)
@click.option("--references", type=click.File(), help="File of right translations, one a line; prints the BLEU.")
@click.option(
    "--beam", default=5, show_default=True, type=int, help="Beginnings of a translation that go on at each step."
)
@click.option(
    "--length-penalty",
    default=0.6,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Exponent for the length of translations; lower values give shorter ones.",
)
@DEVICE
@job_options
def translate(
    conf: Path, checkpoint: str | None, source: TextIO, references: TextIO | None, beam: int, length_penalty: float,
    data_root: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Translate sentences with a trained net, by beam search.

    CONF is the job file of a translator. Prints a translation for each line of the input, its words separated by
    blanks as those of the training sentences are.
    """
    import time

    from dsinga import api
    from dsinga.job import load
    from dsinga.training import bleu

    job = load(conf, overrides)
    sentences = source.read().splitlines()
    right = references.read().splitlines() if references else None
    if right is not None and len(right) != len(sentences):
        raise UserError(f"{len(sentences)} sentences have {len(right)} references; give one for each sentence")
    started = time.perf_counter()
    translations = api.translate(job, checkpoint, sentences, beam, length_penalty, data_root=data_root)
    seconds = time.perf_counter() - started
    for translation in translations:
        click.echo(translation)
    click.echo(f"translated {len(translations)} sentences in {seconds:.1f} s", err=True)
    if right is not None:
        click.echo(f"BLEU {bleu(translations, [reference.lower() for reference in right]):.2f}", err=True)


@click.command()
@click.argument("queries")
@click.argument("database")
@click.option(
    "--distance", type=click.Choice(["cosine", "euclidean"]), default="cosine", show_default=True,
    help="Distance between two rows.",
)  # fmt: skip
@click.option(
    "--at",
    default=10,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="K",
    help="K, the number of nearest rows for the precision.",
)
def retrieve(queries: str, database: str, distance: str, at: int) -> None:
    """Measure how well features find rows of the same class.

    Ranks the rows of the store DATABASE by their distance from each row of the store QUERIES, and prints the mean
    average precision and the precision at K. Both are zarr stores of features with labels, as dsinga predict writes
    them.
    """
    from dsinga.data.retrieval import compare_stores

    for name, value in compare_stores(queries, database, distance, at).items():
        click.echo(f"{name:24} {value:.4f}")
