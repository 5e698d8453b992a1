"""The command ``retrieve``."""

from __future__ import annotations

import click

from dsinga.base.registry import register


@register("command", "retrieve")
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
    from dsinga.addons.retrieval.ranking import compare_stores

    for name, value in compare_stores(queries, database, distance, at).items():
        click.echo(f"{name:24} {value:.4f}")
