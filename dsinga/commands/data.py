"""The commands on data: ``data import``, ``data info``, ``data verify``, and ``example``, a job with its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dsinga.base.durable_files import holds_files, replaced_files
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import entries, register
from dsinga.commands.options import IMPORT

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE_NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/job.conf"))


@register("command", "data")
@click.group()
def data() -> None:
    """Import data into zarr stores, describe a store, or verify it."""


@data.command("import")
@click.argument("kind")
@click.argument("source")
@click.argument("destination")
@click.option("--overwrite", is_flag=True, help="Replace existing stores.")
@click.option("--separator", help="csv, textfile: separator of the numbers of a line [default: a comma].")
@click.option(
    "--no-label", "has_label", flag_value=False, default=None, help="csv, textfile, conll: there is no label column."
)
@click.option(
    "--label-columns", type=int, metavar="K", help="csv, textfile: the first K numbers of a line are float labels."
)
@click.option(
    "--vocabulary",
    help="conll, text, sentences, pairs: the imported training text, whose codes are used; text: or a tokenizer.json.",
)
@click.option("--words", flag_value=True, default=None, help="text: records are words, not characters.")
@click.option(
    "--skip-unseen",
    flag_value=True,
    default=None,
    help="text: leave out characters or words that the vocabulary lacks.",
)
@click.option(
    "--held-out",
    type=float,
    metavar="SHARE",
    help="text, contexts [0.1]: share of the text, at its end, that is kept for testing; sentences [0.1], "
    "movielens [0.2]: share of the records, evenly spaced.",
)
@click.option(
    "--min-count",
    type=int,
    help="conll, sentences, pairs, movielens, contexts: words that occur less often become unknown words "
    "[default: 2; contexts: 5].",
)
@click.option("--target", metavar="FILE", help="pairs: the file of the translations of SOURCE, line by line.")
@click.option(
    "--max-length", type=int, metavar="WORDS", help="pairs: pairs with a longer sentence are left out [default: none]."
)
@click.option("--window", type=int, help="contexts: words before a word that are its context [default: 4].")
@click.option("--encoding", help="sentences, pairs: encoding of the files [default: utf-8], such as latin-1.")
@click.option("--encoded", flag_value=True, default=None, help="kvfile, lmdb: pixels are encoded images such as JPEG.")
@click.option("--size", type=int, help="imagefolder: scale every image to SIZE x SIZE.")
@IMPORT
def import_(kind: str, source: str, destination: str, overwrite: bool, **options: Any) -> None:
    """Import SOURCE into the zarr store, or the folder of stores, DESTINATION.

    KIND is the format of the source, such as mnist, cifar10, csv, kvfile, npz, mat or imagefolder.
    """
    from dsinga.data import import_records
    from dsinga.monitor import show_import

    settings = {name: value for name, value in options.items() if value is not None}
    with show_import(f"importing {kind}") as progress:
        stores = import_records(kind, source, destination, progress=progress, overwrite=overwrite, **settings)
    for location, count in stores.items():
        click.echo(redact(f"{location}: {count} records"))


@data.command()
@click.argument("source")
@click.option("--data", metavar="NAME", help="Name of the array of records in a zarr group [default: guessed].")
@click.option("--label", metavar="NAME", help="Name of its array of labels, or of a table's column of labels.")
@click.option(
    "--message", is_flag=True, help="Print what a job's store_conf needs to read SOURCE: table { } of parquet."
)
def info(source: str, data: str | None, label: str | None, message: bool) -> None:
    """Describe SOURCE: the path or URL of a store, of other zarr, of a Dataset (zarr, netCDF), or of parquet."""
    from dsinga.data import describe, open_records

    ways = entries("data").values() if data is None else ()  # for data that are not records
    facts = next((facts for way in ways if (facts := way(source, label)) is not None), None)
    facts = facts or describe(open_records(source, data=data, label=label))
    text = facts.pop("message", None)
    if message:
        if text is None:
            raise UserError(f"a job reads {redact(source)} by its path alone; leave --message out")
        click.echo(text)
        return
    for name, value in facts.items():
        click.echo(f"{name:18} {_text(name, value)}")


@data.command()
@click.argument("store")
@click.option("--data", metavar="NAME", help="Name of an array of records in a zarr group: it is read alone.")
@click.option("--label", metavar="NAME", help="Name of its array of labels [default: guessed].")
def verify(store: str, data: str | None, label: str | None) -> None:
    """Read all of STORE, the path or URL of zarr or references, and say which chunks are damaged, or that none is.

    Without names all arrays of a group are read.

    The exit status is 2 if a chunk is missing or damaged. Zarr that dsinga did not write has no checksums, nor have
    stores of earlier versions: there a changed byte goes unnoticed if its chunk can be decoded.
    """
    from dsinga.data import verify_store
    from dsinga.monitor import show_import

    with show_import("verifying") as progress:
        verified = verify_store(store, data=data, label=label, progress=progress)
    records = f"{verified.records} records" if verified.arrays < 3 else f"{verified.arrays} arrays"
    counts = f"{records} in {verified.chunks} chunks"
    if verified.has_checksums:
        click.echo(redact(f"{store}: {counts} are intact"))
    else:
        click.echo(redact(f"{store}: {counts} can be read; it has no checksums, so changed bytes may go unnoticed"))
    if verified.missing_chunks:
        click.echo(f"{verified.missing_chunks} chunks are not stored: their numbers are the fill value")
    if verified.nonfinite:
        click.echo(f"{verified.nonfinite} numbers are missing (NaN) or infinite: training refuses them")


def _text(name: str, value: Any) -> str:
    if name == "location":
        return redact(value)
    if name in ("sample", "steps", "label_values"):
        return ", ".join(f"{key} {number:.6g}" if key != "rows" else f"{number} rows" for key, number in value.items())
    return str(value)


@register("command", "example")
@click.command()
@click.argument("name", type=click.Choice(EXAMPLE_NAMES))
@click.argument("folder", type=click.Path(path_type=Path))
def example(name: str, folder: Path) -> None:
    """Write the example NAME, a job file and its records, to FOLDER."""
    import os
    import shutil

    try:
        names = os.listdir(EXAMPLES / name)
        if folder.exists() and (not folder.is_dir() or holds_files(folder, names)):
            raise UserError(f"{folder} exists and is not an empty folder; name another one")
        with replaced_files(folder, names) as files:
            for source in sorted((EXAMPLES / name).rglob("*")):  # a folder before its files
                target = files / source.relative_to(EXAMPLES / name)
                target.mkdir() if source.is_dir() else shutil.copyfile(source, target)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"the example cannot be written to {folder}: {reason}; name a folder that can be written"
        ) from error
    click.echo(f"wrote a job and its records to {folder}; train it with:\n  dsinga train {folder / 'job.conf'}")
