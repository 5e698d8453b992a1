"""What codes stand for: the characters or words of a text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from dsinga.data.filesystem import absolute, exists, join
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


def encode(text: str, symbols: Sequence[str]) -> list[int]:
    """Return the codes of a text; raise UserError for the characters or words that ``symbols`` do not have.

    The vocabulary is of words where one of them is longer than a character; otherwise of the bytes of UTF-8 text.
    """
    parts = text.split() if of_words(symbols) else list(text.encode().decode("latin-1"))
    codes = {symbol: code for code, symbol in enumerate(symbols)}
    unseen = sorted(set(parts) - set(codes))
    if unseen:
        shown = ", ".join(map(repr, unseen[:5])) + (" ..." if len(unseen) > 5 else "")
        raise UserError(f"the vocabulary has no {shown}; it has {len(symbols)} {_unit(symbols)}s, leave others out")
    return [codes[part] for part in parts]


def decode(codes: Iterable[int], symbols: Sequence[str]) -> str:
    """Undo :func:`encode`; bytes that are no UTF-8 become the replacement character."""
    parts = [symbols[code] for code in codes]
    return " ".join(parts) if of_words(symbols) else "".join(parts).encode("latin-1").decode(errors="replace")


def of_words(symbols: Sequence[str]) -> bool:
    """Whether a vocabulary is of words, not of characters: one of them is longer than a character."""
    return any(len(symbol) > 1 for symbol in symbols)


def _unit(symbols: Sequence[str]) -> str:
    return "word" if of_words(symbols) else "character"


def _check(location: str, symbols: Sequence[str], what: str) -> None:
    if not symbols:
        raise UserError(f"the vocabulary {location} is empty")
    seen: set[str] = set()
    for symbol in symbols:
        if symbol in seen:
            raise UserError(
                f"the vocabulary {location} has the {what} {symbol!r} twice; give a file with each once, or a store"
            )
        seen.add(symbol)
