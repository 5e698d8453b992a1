"""Names of classes and columns: records are opened so that codes and columns mean what they meant in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.data.array_order import ArrayOrder, in_order
from dsinga.data.fields.time_gaps import is_number
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.named_in_jobs import is_path
from dsinga.data.sources.open_records import DataSource, open_records


class RecordNames(NamedTuple):
    """What the numbers of records stand for; empty where it is not known.

    Attributes:
        classes: the names of the labels 0, 1, ...
        order: the dimensions of an xarray object and the labels along them, or the columns of a data frame.
        label_order: those of the labels.
    """

    classes: tuple[str, ...] = ()
    order: ArrayOrder = ()
    label_order: ArrayOrder = ()

    @classmethod
    def of(cls, source: Any) -> RecordNames:
        """Return the names of a source of records."""
        orders = [column.order for column in getattr(source, "columns", ())]
        return cls(tuple(map(str, getattr(source, "classes", ()) or ())), *orders[:2])

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
        if names.classes and y is not None:
            options["classes"] = names.classes
        x, y = in_order(x, names.order), in_order(y, names.label_order)
        source = x if y is None else (x, y)
    opened = open_records(source, roots=roots, **options)
    check_names(opened, names, phase)
    return opened


def check_names(source: Any, names: RecordNames, phase: str = "") -> None:
    """Raise UserError where the records of ``source`` have names, and others than ``names``, which training had.

    ``phase`` is the name of the phase that reads them, for the message.
    """
    given = RecordNames.of(source)
    pairs = [("labels", "stand for the classes", given.classes, names.classes, False)]
    for what, here, there in (("records", given.order, names.order), ("labels", given.label_order, names.label_order)):
        for axis, known in zip(here[1:], there[1:], strict=False):
            is_field = all(map(is_number, known[1:]))  # whose points may be others
            if axis[0] == known[0]:
                pairs.append((what, f"have along {axis[0]!r}", axis[1:], known[1:], is_field))
    of_phase = f" of phase {phase}" if phase else ""
    for what, verb, labels, expected, may_differ in pairs:
        is_other = labels and expected and labels != expected
        if is_other and not (may_differ and sorted(labels) != sorted(expected)):
            places = (place for place, pair in enumerate(zip(labels, expected, strict=False)) if pair[0] != pair[1])
            place = next(places, min(len(labels), len(expected)))
            raise UserError(
                f"the {what} of {source.location}{of_phase} {verb} {listed(labels)}, those of training "
                f"{listed(expected)}: number {place} is another; give the same in the same order"
            )
