"""What a user gives to a model, in the forms that it takes: batches read, codes in place of texts, whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.data.sources.iterables import is_iterable, read_batches
from dsinga.data.text_codes import TextEncoder, record_without_text, sequences_of, texts_of


def listed(callbacks: Any) -> list[Any]:
    """Return callbacks, of which there may be a single one or None, as a list."""
    if callbacks is None:
        return []
    return [callbacks] if isinstance(callbacks, str) or not isinstance(callbacks, Iterable) else list(callbacks)


def read_iterable(
    x: Any, y: Any = None, weights: Any = None, count: int | None = None, size: int | None = None, seed: int | None = 0
) -> tuple[tuple[Any, Any, Any], int | None]:
    """Return (x, y, weights) of what is given as ``x``, and the rows of its first batch.

    They are arrays where it can only be iterated; for others they are as given, and the rows None.
    Raises UserError for labels beside an iterable, whose batches have them.
    """
    if not is_iterable(x):
        return (x, y, weights), None
    if y is not None or weights is not None:
        raise UserError(f"the batches of the {type(x).__name__} are (x, y) or (x, y, weights); leave y and weights out")
    parts, rows = read_batches(x, count, size or 32, seed or 0)
    x, y, weights = parts + (None,) * (3 - len(parts))
    return (x, y, weights), rows


def as_codes(x: Any, name: str, encoders: Mapping[str, TextEncoder | None]) -> Any:
    """Return the records of an input with codes in place of texts, or of sequences of codes of several lengths.

    Raises UserError where the input takes no such records.
    """
    if (texts := texts_of(x)) is not None:
        if encoder := encoders.get(name):
            return encoder.encode(texts)
        raise UserError(f"the input {name!r} gets texts; begin with nn.TextVectorization")
    if encoders.get(name) and (without := record_without_text(x)) is not None:
        raise UserError(f"the input {name!r} takes texts, but record {without} is none; leave it out, or give ''")
    if (codes := sequences_of(x)) is not None and name not in encoders:
        raise UserError(f"the input {name!r} gets sequences of several lengths; write nn.Input((None,))")
    return x if codes is None else codes


def as_arrays(value: Any, are_several: bool = False) -> Any:
    """Return a batch, or one for each of several inputs or outputs, as numpy arrays; None and sequences as they are."""
    if isinstance(value, dict):
        return {name: as_arrays(item) for name, item in value.items()}
    if are_several and isinstance(value, (list, tuple)):
        return [as_arrays(item) for item in value]
    return value if value is None or sequences_of(value) is not None else np.asarray(value)


def check_whole_numbers(**arguments: Any) -> None:
    """Raise UserError for an argument that is given and no whole number above 0."""
    for name, number in arguments.items():
        if number is not None:
            check_whole(name, number, 1)
