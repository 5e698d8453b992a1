"""Describes the columns of a table, for ``dsinga data info`` and notebooks."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from dsinga.addons.tables.columns import RecordParts
from dsinga.addons.tables.definition import TableColumnConf, TableDefinition
from dsinga.addons.tables.frames import Frame
from dsinga.base.registry import listed


def facts_of(frame: Frame, definition: TableDefinition, parts: RecordParts) -> dict[str, Any]:
    """Describe a table for ``dsinga data info``: its size, and what each column becomes in a record."""
    facts: dict[str, Any] = {
        "location": frame.location,
        "kind": "table; train from it with dsinga.table",
        "records": len(frame),
        "parts": len(frame.lengths),
    }
    confs = {name: [*group] for name, group in groupby(definition.column, key=lambda conf: conf.name)}
    for name in frame.names:
        if name == definition.label:
            classes = definition.classes
            facts[f"label {name}"] = f"{len(classes)} classes: {listed(classes)}" if classes else "numbers"
        else:
            facts[f"column {name}"] = _described(confs[name], len(frame)) if name in confs else "left out"
    counts = f"{len(parts.numbers)} scaled ({definition.scaling}), {len(parts.flags)} flags, {len(parts.sizes)} codes"
    facts["record"] = f"{sum(map(len, parts[:3]))} numbers: {counts}"
    return facts


def _described(confs: list[TableColumnConf], rows: int) -> str:
    first, *_ = confs
    words = []
    if first.kind == "number":
        words.append(f"number; {first.quantile[0]:g} to {first.quantile[-1]:g}, median {first.median:g}; scaled")
    elif first.kind == "date":
        days = next((conf.quantile for conf in confs if conf.part == "day"), None)
        ends = [str(np.datetime64(int(day // 1), "D")) for day in (days[0], days[-1])] if days else []
        words += ["date", *([f"time zone {first.zone}"] if first.zone else []), *([" to ".join(ends)] if ends else [])]
        words.append(f"{', '.join(conf.part for conf in confs)}, scaled")
    elif first.kind == "boolean":
        words.append("boolean; a flag")
    for conf in confs:
        if conf.kind == "category":
            start = "a code" if len(words) else "category; a code"
            words.append(f"{start} for each of {len(conf.category)}: {listed(conf.category[:6])}")
    if first.missing:
        words.append(f"{first.missing / rows:.2%} missing" + ("" if first.kind == "category" else ", a flag"))
    return "; ".join(words)
