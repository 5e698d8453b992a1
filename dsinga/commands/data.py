"""Data: importing records into stores, and looking at these."""

from __future__ import annotations

from typing import Any

import click

from dsinga.commands.options import IMPORT


@click.group()
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
