"""Names of classes and columns: records are opened so that codes and columns mean what they meant in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.data.array_order import ArrayOrder, columns_of, in_order, is_frame
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.named_in_jobs import is_path
from dsinga.data.sources.open_records import DataSource, open_records


class RecordNames(NamedTuple):
    """What the numbers of records stand for; empty where it is not known.

    Attributes:
        classes: the names of the labels 0, 1, ...
        columns: the names of the columns of a table.
        order: the dimensions of an xarray object and the labels along them.
        label_order: those of the labels, or the columns of a data frame of labels.
    """

    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    order: ArrayOrder = ()
    label_order: ArrayOrder = ()

    @classmethod
    def of(cls, source: Any) -> RecordNames:
        """Return the names of a source of records."""
        classes, columns = (tuple(map(str, getattr(source, name, ()) or ())) for name in ("classes", "titles"))
        orders = [column.order for column in getattr(source, "columns", ())]
        return cls(classes, columns, *orders[:2])

    def or_else(self, other: RecordNames) -> RecordNames:
        """Return these names, and those of ``other`` where these are not known."""
        return RecordNames._make(here or there for here, there in zip(self, other, strict=True))


def open_like(source: Any, names: RecordNames, roots: Sequence[str] = (), phase: str = "") -> RecordSource:
    """Return the source of records that ``source`` is or has, as :func:`open_records`, in the order of ``names``.

    The columns of a data frame, and the dimensions and labelled points of xarray objects, are taken by their names, in
    any order; categories, and labels that are strings, have the codes of their classes. ``phase`` is the name of the
    phase that reads the records. Raises UserError for a column, a label or a class that is not among the names, and for
    records of other kinds that have other names.
    """
    options: dict[str, Any] = {}
    x, y = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not isinstance(source, (RecordSource, DataSource)) and not is_path(source):
        if names.columns and is_frame(x):
            options["columns"] = columns_of(x, names.columns)
        if names.classes and y is not None:
            options["classes"] = names.classes
        x, y = x if is_frame(x) else in_order(x, names.order), in_order(y, names.label_order)
        source = x if y is None else (x, y)
    opened = open_records(source, roots=roots, **options)
    check_names(opened, names, phase)
    return opened


def check_names(source: Any, names: RecordNames, phase: str = "") -> None:
    """Raise UserError where the records of ``source`` have names, and others than ``names``, which training had.

    ``phase`` is the name of the phase that reads them, for the message.
    """
    of_phase = f" of phase {phase}" if phase else ""
    for here, there in zip(RecordNames.of(source).order[1:], names.order[1:], strict=False):
        if here != there and sorted(here) == sorted(there):
            raise UserError(
                f"{source.location}{of_phase} has {listed(here[1:])} along {here[0]!r}, and training had "
                f"{listed(there[1:])}; give the array itself, which is put in order"
            )
    verbs, option_names = ("stand for the classes", "are"), ("classes", "columns")
    for what, verb, option, given, expected in zip(
        ("labels", "columns"), verbs, option_names, RecordNames.of(source)[:2], names[:2], strict=True
    ):
        if given and expected and given != expected:
            pairs = enumerate(zip(given, expected, strict=False))
            place = next((place for place, (one, other) in pairs if one != other), min(len(given), len(expected)))
            raise UserError(
                f"the {what} of {source.location}{of_phase} {verb} {listed(given)}, those of training {verb} "
                f"{listed(expected)}: number {place} is another; give the same {option} in the same order, as in "
                f"dsinga.data.open_records(..., {option}=[...])"
            )
