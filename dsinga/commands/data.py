"""The commands ``data import`` and ``data info``."""

from __future__ import annotations

from typing import Any

import click

from dsinga.commands.options import IMPORT


@click.group()
def data() -> None:
    """Import data into zarr stores, or describe a store."""


@data.command("import")
@click.argument("kind")
@click.argument("source")
@click.argument("destination")
@click.option("--overwrite", is_flag=True, help="Replace existing stores.")
@click.option("--separator", help="csv, textfile: separator of the numbers of a line [default: a comma].")
@click.option(
    "--no-label", "has_label", flag_value=False, default=None, help="csv, textfile, conll: there is no label column."
)
@click.option("--vocabulary", help="conll, text: the imported training text, whose codes are used.")
@click.option("--words", flag_value=True, default=None, help="text: records are words, not characters.")
@click.option(
    "--skip-unseen",
    flag_value=True,
    default=None,
    help="text: leave out characters or words that the vocabulary lacks.",
)
@click.option(
    "--held-out", type=float, metavar="SHARE", help="text: share of the text, at its end, that is kept for testing."
)
@click.option(
    "--min-count",
    type=int,
    help="conll: words that occur less often in the training text become unknown words [default: 2].",
)
@click.option("--encoded", flag_value=True, default=None, help="kvfile, lmdb: pixels are encoded images such as JPEG.")
@click.option("--size", type=int, help="imagefolder: scale every image to SIZE x SIZE.")
@IMPORT
def import_(kind: str, source: str, destination: str, overwrite: bool, **options: Any) -> None:
    """Import SOURCE into the zarr store, or the folder of stores, DESTINATION.

    KIND is the format of the source, such as mnist, cifar10, csv, kvfile, npz, mat or imagefolder.
    """
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
    """Describe the zarr store STORE."""
    from dsinga.data import describe, open_store

    for name, value in describe(open_store(store)).items():
        click.echo(f"{name:18} {value}")
