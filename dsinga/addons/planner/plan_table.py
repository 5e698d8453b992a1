"""Tables of a plan on the terminal: the alternatives, and how they scale with the number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rich.box
import rich.console
import rich.table

from dsinga.addons.planner.sites import site_lines
from dsinga.base.arguments import format_bytes


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
    if not all(row["fits"] for row in rows):
        console.print(
            f"  (!) needs more memory than a machine like this has, {format_bytes(figures['machine_bytes'])}: use a "
            "smaller batch, or machines with fewer workers or more memory"
        )
    if figures["precisions"]:
        times = ", ".join(f"{name} {ms:,.2f} ms" for name, ms in figures["precisions"].items())
        console.print(f"\nprecision: {times} for {'one worker' if workers == 1 else 'auto'}")
    console.print(f"\nsnapshots: up to {format_bytes(figures['snapshot_bytes'])} of memory in the driver's process")
    console.print(f"scaling, {figures['scaling']}:")
    console.print(_scaling(figures["curve"]))
    if "sites" in figures:
        first, last = site_lines(figures["sites"])
        console.print(first)
        console.print(_outer_steps(figures["sites"]["outer_steps"]))
        console.print(last)
    if "warning" in figures:
        console.print(f"warning: {figures['warning']}")


def _outer_steps(rows: Sequence[Mapping[str, Any]]) -> rich.table.Table:
    table = rich.table.Table("compression", box=rich.box.SIMPLE, padding=(0, 0))
    for name in ("sent", "ms", "sync_freq", "delay"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        steps = [f"{row[name]:,}" for name in ("sync_freq", "delay")]
        table.add_row(row["compression"], format_bytes(row["bytes"]), f"{row['ms']:,.2f}", *steps)
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['ms_per_iteration']:,.2f}",
        f"{row['compute_ms']:,.2f}",
        format_bytes(row["sent_bytes"]),
        format_bytes(row["received_bytes"]),
        format_bytes(row["memory_bytes"]) + ("" if row["fits"] else " (!)"),
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
