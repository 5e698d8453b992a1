"""Runs modules of benchmarks in processes of their own, until a deadline, and prints tables."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import click

Figures = dict[str, Any]


class Deadline:
    """The time at which the table that is being made must end."""

    at = float("inf")

    @classmethod
    def left(cls) -> float:
        """Return the seconds that are left."""
        return cls.at - time.monotonic()


def turn(module: str, *arguments: str) -> Any:
    """Run a module in a process of its own; return the figures that it prints, or the error as ``failed``."""
    return json_of(sys.executable, "-m", f"tools.benchmarks.{module}", *arguments)


def json_of(*command: str) -> Any:
    """Return the last line of a command's output, which is JSON, or the error as ``failed``."""
    seconds = Deadline.left()
    if seconds < 1:
        return {"failed": "no time was left for it"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=min(seconds, 1e6), check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {seconds:.0f} s"}
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["ended without a message"]
        return {"failed": lines[-1], "errors": ended.stderr[-4000:]}
    return json.loads(ended.stdout.splitlines()[-1])


def cell(figures: Figures, key: str = "ms") -> str:
    """Return a figure for a table, or the reason why it is missing."""
    number = figures.get(key)
    return f"failed: {figures.get('failed', 'not measured')}" if number is None else f"{number:.2f}"


def head(*columns: str) -> None:
    """Print the first two lines of a table."""
    click.echo("\n| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")


def row(*cells: str) -> None:
    """Print a line of a table."""
    click.echo("| " + " | ".join(cells) + " |")
