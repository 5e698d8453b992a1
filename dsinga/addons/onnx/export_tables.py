"""Exports the encoding of a data frame's columns as ONNX nodes: scaled numbers, parts of dates, flags and codes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.addons.onnx.export_graph import BOOL, DOUBLE, FLOAT, INT64, STRING, ExportedLayer, GraphWriter
from dsinga.addons.onnx.export_steps import Values
from dsinga.base.components import naming_addons
from dsinga.base.errors import UserError
from dsinga.nn.model.predictable import Predictable

if TYPE_CHECKING:
    from dsinga.addons.tables.served import ServedColumns

TYPES = {"number": DOUBLE, "boolean": BOOL, "date": INT64, "category": STRING}
SECOND, DAY, NO_DATE = 1_000_000, 86_400_000_000, np.iinfo(np.int64).min  # microseconds
CLOCK = {"hour": (3600, 24), "minute": (60, 60), "second": (1, 60)}  # seconds of a part, and how many there are


def served_columns(model: Predictable) -> dict[str, ServedColumns]:
    """Return the data frame's columns that a model was trained on, by input."""
    definitions = {name: fields.get("table") for name, fields in model.trained_definitions().items()}
    tables = {name: each for name, each in definitions.items() if each is not None}
    if not tables:
        return {}
    with naming_addons("a model of tables"):
        from dsinga.addons.tables.served import ServedColumns
    return {name: ServedColumns(each) for name, each in tables.items()}


def writer_of(graph: GraphWriter, name: str) -> ExportedLayer:
    """Create a writer of nodes outside of layers, called "NAME/..."."""
    return ExportedLayer(graph, SimpleNamespace(name=name), [], [], [])


def add_inputs(graph: GraphWriter, types: Mapping[str, int], shape: tuple[int, ...] = (1,)) -> Values:
    """Add inputs of these types to the ONNX graph, by name."""
    for name in types:
        if not name or graph.unique(name) != name:
            raise UserError(f"the column {name!r} is called as a param, which ONNX does not take; rename the column")
    graph.types |= types
    return [(name, shape) for name in types]


def encoded_columns(graph: GraphWriter, columns: Any, values: dict[str, str]) -> str:
    """Export the records (N, width) float32 of columns, with ``values`` (N, 1) by name."""
    w = writer_of(graph, "columns")
    dates = {name: calendar(w, values[name]) for name in {conf.name: None for conf in columns.numbers if conf.part}}
    missing = {name: parts["missing"] for name, parts in dates.items()}
    missing |= {name: w.add("IsNaN", x) for name, x in values.items() if graph.types.get(name, DOUBLE) == DOUBLE}
    parts = []
    for conf, scaling in zip(columns.numbers, columns.scalings, strict=True):
        x = dates[conf.name][conf.part] if conf.part else values[conf.name]
        parts.append(scaled(w, w.add("Where", missing[conf.name], np.array([[scaling.median]]), x), scaling))
    for conf in columns.booleans:
        x = values[conf.name]
        parts.append(w.add("Where", missing[conf.name], np.zeros((1, 1)), x) if conf.name in missing else x)
    parts += [missing[name] for name in columns.flagged]
    for conf in columns.categories:
        parts.append(codes(w, values[conf.name], conf.category, columns.kinds[conf.name]))
    return w.add("Concat", *(w.add("Cast", part, to=FLOAT) for part in parts), axis=1)


def scaled(w: ExportedLayer, x: str, scaling: Any) -> str:
    """Export the scaling of numbers, float64."""
    if scaling.kind == "quantile":
        return interpolated(w, x, scaling.quantiles, scaling.normal)
    x = w.chain(x, ("Sub", np.array([[scaling.offset]])), ("Div", np.array([[scaling.scale]])))
    if scaling.kind == "standard":
        return x
    third = w.add("Div", x, np.array([[3.0]]))
    return w.add("Div", x, w.chain(third, ("Mul", third), ("Add", np.array([[1.0]])), ("Sqrt",)))


def interpolated(w: ExportedLayer, x: str, known: np.ndarray, values: np.ndarray) -> str:
    """Export ``numpy.interp``: linear between known places, constant outside."""
    if len(known) == 1:
        known, values = np.append(known, known + 1), np.append(values, values)
    x = w.chain(x, ("Max", known[:1]), ("Min", known[-1:]))
    is_after = w.chain(x, ("GreaterOrEqual", known[None, :-1]), ("Cast", {"to": INT64}))
    place = w.chain(is_after, ("ReduceSum", [1], {"keepdims": 1}), ("Sub", 1))
    pieces = known[:-1], np.diff(values) / np.diff(known), values[:-1]
    low, slope, value = (w.add("Gather", each, place) for each in pieces)
    return w.chain(x, ("Sub", low), ("Mul", slope), ("Add", value))


def codes(w: ExportedLayer, x: str, known: list[str], kind: str) -> str:
    """Export the codes of categories: their places in ``known``, starting at 1, or 0 for others."""
    places = [*range(1, len(known) + 1)]
    if kind == "category":
        ml = {"domain": "ai.onnx.ml", "keys_strings": known, "values_int64s": places, "default_int64": 0}
        return w.add("LabelEncoder", x, **ml)
    keys = np.array([known], np.float64)
    return w.chain(x, ("Equal", keys), ("Cast", {"to": INT64}), ("Mul", places), ("ReduceSum", [1], {"keepdims": 1}))


def calendar(w: ExportedLayer, dates: str) -> dict[str, str]:
    """Export the parts of dates (N, 1), float64, and "missing", bool; dates are microseconds since 1970, int64.

    Days count from the first of March of the year 0, so a leap day ends its year (Howard Hinnant, chrono-Compatible
    Low-Level Date Algorithms).
    """

    def floor(x: str, divisor: int) -> str:
        return w.chain(x, ("Sub", w.add("Mod", x, divisor)), ("Div", divisor))  # Div alone rounds towards 0

    def total(*terms: tuple[str, int]) -> str:
        first, *others = (x if factor == 1 else w.add("Mul", x, factor) for x, factor in terms)
        return w.chain(first, *(("Add", other) for other in others))

    def over(x: str, divisor: int) -> str:
        return w.add("Div", x, divisor)

    missing = w.add("Equal", dates, np.array([[NO_DATE]]))
    time = w.add("Where", missing, np.zeros((1, 1), np.int64), dates)
    days = floor(time, DAY)
    march = w.add("Add", days, 719_468)
    era = floor(march, 146_097)  # of 400 years
    day = total((march, 1), (era, -146_097))
    year = over(total((day, 1), (over(day, 1460), -1), (over(day, 36_524), 1), (over(day, 146_096), -1)), 365)
    day = total((day, 1), (year, -365), (over(year, 4), -1), (over(year, 100), 1))
    month = over(w.add("Add", w.add("Mul", day, 5), 2), 153)  # 0 is March
    monthday = total((day, 1), (over(w.add("Add", w.add("Mul", month, 153), 2), 5), -1))
    year = total((year, 1), (era, 400), (over(month, 10), 1))
    last = w.add("Sub", year, 1)
    before = total((last, 365), (floor(last, 4), 1), (floor(last, 100), -1), (floor(last, 400), 1))
    parts = {
        "year": year,
        "month": w.chain(month, ("Add", 2), ("Mod", 12), ("Add", 1)),
        "monthday": w.add("Add", monthday, 1),
        "yearday": w.add("Add", total((days, 1), (before, -1)), 719_163),
        "weekday": w.chain(days, ("Add", 3), ("Mod", 7)),
        **{part: w.add("Mod", floor(time, unit * SECOND), count) for part, (unit, count) in CLOCK.items()},
    }
    numbers = {part: w.add("Cast", x, to=DOUBLE) for part, x in parts.items()}
    day_of_time = w.chain(time, ("Cast", {"to": DOUBLE}), ("Div", np.array([[float(DAY)]])))
    return numbers | {"day": day_of_time, "missing": missing}
