"""Vocabularies: the characters or words that the codes of a text stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from dsinga.data.filesystem import absolute, exists, join
from dsinga.data.store import RecordStore
from dsinga.errors import UserError
from dsinga.regular_files import METADATA_BYTES, read_regular

UNKNOWN = "<unk>"
SENTENCE_START, SENTENCE_END = "<s>", "</s>"  # marks in the vocabulary of translations


def read_vocabulary(path: str | os.PathLike[str], words: bool = False) -> tuple[str, ...]:
    """Return the characters or words that the codes 0, 1, ... stand for, read from a store or a vocabulary file.

    A file of characters lists them without separators, as SINGA's vocab.txt does; each byte is one character, decoded
    as Latin-1. A file of words has one word per line, in UTF-8. Raises UserError for a store without a vocabulary, an
    empty file, and a character or word that occurs twice.
    """
    location = absolute(path)
    if location.endswith(".zarr") or exists(join(location, "zarr.json")):
        symbols = RecordStore(location).vocabulary
        if not symbols:
            raise UserError(f"{location} has no vocabulary; give a store made with: dsinga data import text")
        return symbols
    try:
        content = read_regular(location, METADATA_BYTES)
        symbols = tuple(content.decode().splitlines() if words else content.decode("latin-1"))
    except OSError as error:
        raise UserError(f"the vocabulary {location} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the vocabulary {location} is not UTF-8 text ({error.reason})") from None
    _check(location, symbols, "word" if words else "character")
    return symbols


class SymbolEncoder:
    """Finds the codes of texts in a vocabulary. A word that is not in it gets the code of <unk>, if it has <unk>."""

    def __init__(self, symbols: Sequence[str]):
        self._codes = {symbol: code for code, symbol in enumerate(symbols)}
        self._words = has_words(symbols)
        self._unknown = self._codes.get(UNKNOWN) if self._words else None

    def encode(self, text: str) -> list[int]:
        """Return the codes of a text; raise UserError for what has none.

        The text is split into words if the vocabulary consists of words, else into the bytes of its UTF-8 encoding.
        """
        return self.encode_symbols(text.split() if self._words else list(text.encode().decode("latin-1")))

    def encode_symbols(self, symbols: Iterable[str]) -> list[int]:
        """Return the codes of words or characters; raise UserError for those that have none."""
        symbols = list(symbols)
        found = [self._codes.get(symbol, self._unknown) for symbol in symbols]
        codes = [code for code in found if code is not None]
        if len(codes) == len(symbols):
            return codes
        missing = sorted({symbol for symbol, code in zip(symbols, found, strict=True) if code is None})
        listing = ", ".join(map(repr, missing[:5])) + (" ..." if len(missing) > 5 else "")
        unit, also = ("word", f", and no {UNKNOWN} in their place") if self._words else ("character", "")
        raise UserError(
            f"the vocabulary of {len(self._codes)} {unit}s has no {listing}{also}; leave such out of the text"
        )


def encode(text: str, symbols: Sequence[str]) -> list[int]:
    """Return the codes of one text; see :class:`SymbolEncoder`."""
    return SymbolEncoder(symbols).encode(text)


def decode(codes: Iterable[int], symbols: Sequence[str]) -> str:
    """Return the text of ``codes``, the inverse of :func:`encode`; bytes that are not UTF-8 are replaced by U+FFFD."""
    tokens = [symbols[code] for code in codes]
    return " ".join(tokens) if has_words(symbols) else "".join(tokens).encode("latin-1").decode(errors="replace")


def has_words(symbols: Sequence[str]) -> bool:
    """Return whether a vocabulary consists of words, not characters: some symbol is longer than one character."""
    return any(len(symbol) > 1 for symbol in symbols)


def _check(location: str, symbols: Sequence[str], unit: str) -> None:
    if not symbols:
        raise UserError(f"the vocabulary {location} is empty")
    unique: set[str] = set()
    for symbol in symbols:
        if symbol in unique:
            raise UserError(f"the vocabulary {location} has the {unit} {symbol!r} twice; list each {unit} once")
        unique.add(symbol)
