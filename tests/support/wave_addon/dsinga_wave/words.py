"""The metric wave_gap, files of records whose names end with .wave, and the command hello."""

from typing import Any

import click
import numpy as np

import dsinga
from dsinga.data import open_records


@dsinga.register("metric", "wave_gap")
def wave_gap(labels: Any, predictions: Any) -> float:
    """Return the mean distance of labels from the classes that are predicted."""
    return float(np.abs(labels - predictions.argmax(axis=1)).mean())


@dsinga.register("records", ".wave")
def open_wave(location: str, **_: Any) -> Any:
    """Return the records of a text file: in each line the label and the numbers."""
    table = np.loadtxt(location, dtype=np.float32)
    return open_records((table[:, 1:], table[:, 0].astype(np.int64)))


@click.command()
def hello() -> None:
    """Greet from another distribution."""
    click.echo("hello from dsinga-wave")
