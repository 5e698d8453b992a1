"""Names of classes and columns: records are opened so that codes and columns mean what they meant in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.data_frames import FRAMES
from dsinga.data.sources.named_in_jobs import is_path
from dsinga.data.sources.open_records import DataSource, open_records


class RecordNames(NamedTuple):
    """What the numbers of records stand for; empty where it is not known.

    Attributes:
        classes: the names of the labels 0, 1, ...
        columns: the names of the columns of a table.
    """

    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Any) -> RecordNames:
        """Return the names of a source of records."""
        return cls(*(tuple(map(str, getattr(source, name, ()) or ())) for name in ("classes", "titles")))

    def or_else(self, other: RecordNames) -> RecordNames:
        """Return these names, and those of ``other`` where these are not known."""
        return RecordNames(self.classes or other.classes, self.columns or other.columns)


def open_like(source: Any, names: RecordNames, roots: Sequence[str] = (), phase: str = "") -> RecordSource:
    """Return the source of records that ``source`` is or has, as :func:`open_records`, in the order of ``names``.

    The columns of a data frame are taken by their names, in any order; categories, and labels that are strings, have
    the codes of their classes. ``phase`` is the name of the phase that reads the records. Raises UserError for a column
    or a class that is not among the names, and for records of other kinds that have other names.
    """
    options: dict[str, Any] = {}
    x, y = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not isinstance(source, (RecordSource, DataSource)) and not is_path(source):
        if names.columns and FRAMES.takes(x) and x.ndim == 2:
            options["columns"] = _columns_of(x, names.columns)
        if names.classes and y is not None:
            options["classes"] = names.classes
    opened = open_records(source, roots=roots, **options)
    check_names(opened, names, phase)
    return opened


def _columns_of(frame: Any, names: Sequence[str]) -> list[Any]:
    """Return the labels of a data frame's columns of these names. Raises UserError for others."""
    columns = {str(label): label for label in frame.columns}
    for name in names:
        if name not in columns:
            raise UserError(
                f"the data frame has no column {name!r}, which the records of training have{nearest(name, columns)}"
            )
    for name in columns:
        if name not in names:
            raise UserError(
                f"the data frame has the column {name!r}, which the records of training lack; leave it out: "
                f"frame.drop(columns={columns[name]!r})"
            )
    return [columns[name] for name in names]


def check_names(source: Any, names: RecordNames, phase: str = "") -> None:
    """Raise UserError where the records of ``source`` have names, and others than ``names``, which training had.

    ``phase`` is the name of the phase that reads them, for the message.
    """
    of_phase = f" of phase {phase}" if phase else ""
    verbs, option_names = ("stand for the classes", "are"), ("classes", "columns")
    for what, verb, option, given, expected in zip(
        ("labels", "columns"), verbs, option_names, RecordNames.of(source), names, strict=True
    ):
        if given and expected and given != expected:
            pairs = enumerate(zip(given, expected, strict=False))
            place = next((place for place, (one, other) in pairs if one != other), min(len(given), len(expected)))
            raise UserError(
                f"the {what} of {source.location}{of_phase} {verb} {listed(given)}, those of training {verb} "
                f"{listed(expected)}: number {place} is another; give the same {option} in the same order, as in "
                f"dsinga.data.open_records(..., {option}=[...])"
            )
