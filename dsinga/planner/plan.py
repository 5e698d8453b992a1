"""A plan, the priced partitionings of a job, and its tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table

from dsinga.planner.memory import FIXED, Memory
from dsinga.planner.simulate import Prediction


class Alternative(NamedTuple):
    """A priced partitioning over ``workers`` workers.

    Attributes:
        name: the name of the strategy.
        workers: the number of workers.
        words: the cuts as text.
        prediction: the cost of an iteration.
        efficiency: t1 / (n·tn).
        memory: that of the worker that needs most; None where the net is approximated, not partitioned.
    """

    name: str
    workers: int
    words: str
    prediction: Prediction
    efficiency: float
    memory: Memory | None = None

    def figures(self) -> dict[str, Any]:
        """Return the alternative as plain numbers and text, for JSON."""
        return {
            "name": self.name,
            "workers": self.workers,
            "ms_per_iteration": 1e3 * self.prediction.seconds,
            "compute_ms": 1e3 * self.prediction.compute,
            "sent_bytes": self.prediction.sent,
            "received_bytes": self.prediction.received,
            "memory_bytes": self.memory.peak if self.memory else self.prediction.memory + FIXED,
            "speedup": self.efficiency * self.workers,
            "efficiency": self.efficiency,
            "partitioning": self.words,
        }


@dataclass(frozen=True)
class Plan:
    """The priced partitionings of a job.

    Attributes:
        job: the name of the job.
        batch: rows of a batch.
        where: a text that says where the workers of ``alternatives`` run.
        alternatives: those for one number of workers, cheapest first.
        scaling: a text that says where the workers of ``curve`` run.
        curve: some strategies for 1, 2, 4, ... workers.
        snapshot_bytes: the memory of the driver for snapshots, by which a run survives the loss of Dask workers.
        warning: a text that says why times may be too long, or "".
    """

    job: str
    batch: int
    where: str
    alternatives: Sequence[Alternative]
    scaling: str
    curve: Sequence[Alternative]
    snapshot_bytes: int
    warning: str = ""

    def figures(self) -> dict[str, Any]:
        """Return the plan as plain numbers and text, for JSON."""
        rows = {
            name: [alternative.figures() for alternative in getattr(self, name)] for name in ("alternatives", "curve")
        }
        texts = {"job": self.job, "batch": self.batch, "where": self.where, "scaling": self.scaling}
        return {**texts, "snapshot_bytes": self.snapshot_bytes, **rows} | (
            {"warning": self.warning} if self.warning else {}
        )


UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def print_plan(figures: Mapping[str, Any], console: rich.console.Console) -> None:
    """Print a plan, given as ``Plan.figures`` returns it."""
    rows = figures["alternatives"]
    workers = max(row["workers"] for row in rows)
    console.print(
        f"{figures['job']}: batch {figures['batch']}, {workers} workers: {figures['where']}; predicted per iteration:"
    )
    table = rich.table.Table(rich.table.Column("strategy", no_wrap=True), box=rich.box.SIMPLE, padding=(0, 0))
    for name in ("ms", "computing", "sent", "received", "memory", "speedup", "efficiency"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["name"], *_cells(row))
    console.print(table)
    for row in rows:
        console.print(f"  {row['name']}: {row['partitioning']}")
    console.print(f"\nsnapshots: up to {format_bytes(figures['snapshot_bytes'])} of memory in the driver's process")
    console.print(f"scaling, {figures['scaling']}:")
    console.print(_scaling(figures["curve"]))
    if "warning" in figures:
        console.print(f"warning: {figures['warning']}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['ms_per_iteration']:,.2f}",
        f"{row['compute_ms']:,.2f}",
        format_bytes(row["sent_bytes"]),
        format_bytes(row["received_bytes"]),
        format_bytes(row["memory_bytes"]),
        f"{row['speedup']:.2f}",
        f"{row['efficiency']:.0%}",
    ]


def _scaling(rows: Sequence[Mapping[str, Any]]) -> rich.table.Table:
    names = list(dict.fromkeys(row["name"] for row in rows))
    table = rich.table.Table("workers", box=rich.box.SIMPLE)
    for name in names:
        table.add_column(f"{name} ms", justify="right", no_wrap=True)
        table.add_column("eff.", justify="right", no_wrap=True)
    for workers in dict.fromkeys(row["workers"] for row in rows):
        by_name = {row["name"]: row for row in rows if row["workers"] == workers}
        cells: Iterable[str] = (
            cell
            for name in names
            for cell in (
                (f"{by_name[name]['ms_per_iteration']:,.2f}", f"{by_name[name]['efficiency']:.0%}")
                if name in by_name
                else ("", "")
            )
        )
        table.add_row(str(workers), *cells)
    return table


def format_bytes(size: float) -> str:
    """Return a size as text with three digits: 248 MB."""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"
