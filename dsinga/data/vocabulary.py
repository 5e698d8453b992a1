"""What codes stand for: the characters or words of a text."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dsinga.data.location import absolute, exists, join
from dsinga.data.store import RecordStore
from dsinga.errors import UserError


def read_vocabulary(path: str | os.PathLike[str], words: bool = False) -> tuple[str, ...]:
    """Return what the codes 0, 1, ... stand for, from a store that was imported, or from a file.

    A file of characters has them one after the other, as SINGA's vocab.txt; each byte is one, called as in Latin-1. A
    file of words has one a line, in UTF-8. Raises UserError for a store without a vocabulary, an empty file, and a
    character or word that is there twice.
    """
    location = absolute(path)
    if location.endswith(".zarr") or exists(join(location, "zarr.json")):
        symbols = RecordStore(location).vocabulary
        if not symbols:
            raise UserError(f"{location} has no vocabulary; give a store that `dsinga data import text` has made")
        return symbols
    try:
        with open(location, "rb") as file:
            content = file.read()
        symbols = tuple(content.decode().splitlines() if words else content.decode("latin-1"))
    except OSError as error:
        raise UserError(f"the vocabulary {location} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the vocabulary {location} is not UTF-8 text ({error.reason})") from None
    _check(location, symbols, "word" if words else "character")
    return symbols


def _check(location: str, symbols: Sequence[str], what: str) -> None:
    if not symbols:
        raise UserError(f"the vocabulary {location} is empty")
    seen: set[str] = set()
    for symbol in symbols:
        if symbol in seen:
            raise UserError(f"the vocabulary {location} has the {what} {symbol!r} twice")
        seen.add(symbol)
