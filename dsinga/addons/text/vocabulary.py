"""Vocabularies: the characters, words or tokens behind a text's codes, in stores, files and imports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.regular_files import METADATA_BYTES, read_regular, read_regular_text
from dsinga.data.filesystem import exists
from dsinga.data.locations import absolute, join
from dsinga.data.stores.record_store import RecordStore

UNKNOWN = "<unk>"
RECORDS_PER_BATCH = 1024  # that importers of sentences read together
SENTENCE_START, SENTENCE_END = "<s>", "</s>"  # marks in the vocabulary of translations


def read_vocabulary(path: str | os.PathLike[str], words: bool = False) -> tuple[str, ...]:
    """Read the characters or words of the codes 0, 1, ... from a store or a vocabulary file.

    A file of characters, like SINGA's vocab.txt, has no separators; each byte is one character, decoded as Latin-1. A
    file of words has one word a line, in UTF-8.
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
    """Converts texts to codes of a vocabulary and back; missing words get the code of ``unknown``, if any.

    ``separator`` is between a text and its continuation.
    """

    def __init__(self, symbols: Sequence[str], unknown: str = UNKNOWN):
        self.symbols, self.separator = tuple(symbols), " " if has_words(symbols) else ""
        self._codes = {symbol: code for code, symbol in enumerate(symbols)}
        self._words = has_words(symbols)
        self._unknown = self._codes.get(unknown) if self._words else None

    def encode(self, text: str) -> list[int]:
        """Encode a text; raise UserError for a character or word without a code."""
        return self.encode_symbols(text.split() if self._words else list(text.encode().decode("latin-1")))

    def decode(self, codes: Iterable[int]) -> str:
        """Convert codes to text."""
        return decode(codes, self.symbols)

    def encode_symbols(self, symbols: Iterable[str]) -> list[int]:
        """Encode words or characters; raise UserError for missing ones."""
        symbols = list(symbols)
        optional_codes = [self._codes.get(symbol, self._unknown) for symbol in symbols]
        codes = [code for code in optional_codes if code is not None]
        if len(codes) == len(symbols):
            return codes
        missing = sorted({symbol for symbol, code in zip(symbols, optional_codes, strict=True) if code is None})
        listing = ", ".join(map(repr, missing[:5])) + (" ..." if len(missing) > 5 else "")
        unit, also = ("word", f", and no {UNKNOWN} in their place") if self._words else ("character", "")
        raise UserError(
            f"the vocabulary of {len(self._codes)} {unit}s has no {listing}{also}; leave such out of the text"
        )


def encode(text: str, symbols: Sequence[str]) -> list[int]:
    """Encode one text; see :class:`SymbolEncoder`."""
    return SymbolEncoder(symbols).encode(text)


def decode(codes: Iterable[int], symbols: Sequence[str]) -> str:
    """Convert codes to text, the inverse of :func:`encode`; invalid UTF-8 becomes U+FFFD."""
    tokens = [symbols[code] for code in codes]
    return " ".join(tokens) if has_words(symbols) else "".join(tokens).encode("latin-1").decode(errors="replace")


def has_words(symbols: Sequence[str]) -> bool:
    """Whether a vocabulary has words: some symbol is longer than one character."""
    return any(len(symbol) > 1 for symbol in symbols)


def _check(location: str, symbols: Sequence[str], unit: str) -> None:
    if not symbols:
        raise UserError(f"the vocabulary {location} is empty")
    unique: set[str] = set()
    for symbol in symbols:
        if symbol in unique:
            raise UserError(f"the vocabulary {location} has the {unit} {symbol!r} twice; list each {unit} once")
        unique.add(symbol)


def check_min_count(min_count: int) -> None:
    """Raise UserError for a ``min_count`` below 1."""
    if min_count < 1:
        raise UserError(f"min_count is {min_count}; give 1, which keeps every word, or more")


def check_held_out(share: float) -> None:
    """Raise UserError unless the share of test records is from 0 to below 1."""
    if not 0 <= share < 1:
        raise UserError(f"held_out is {share}; give the fraction of the records to keep for tests, from 0 to below 1")


def common_words(counts: Counter[str], min_count: int) -> tuple[str, ...]:
    """Return <unk>, then the words that occur at least ``min_count`` times, most frequent first."""
    return (UNKNOWN, *(word for word, times in counts.most_common() if times >= min_count and word != UNKNOWN))


def encode_sentences(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str], steps: int) -> np.ndarray:
    """Encode sentences, (n, ``steps``) int32, cut, -1 after the end; unknown words get <unk>'s code."""
    encoder = SymbolEncoder(vocabulary)
    data = np.full((len(sentences), steps), -1, np.int32)
    for row, words in enumerate(sentences):
        data[row, : len(words)] = encoder.encode_symbols(words[:steps])
    return data


def is_held_out(number: int, share: float) -> bool:
    """Whether record ``number``, from 0, is kept for tests: the last of each 1/``share`` records."""
    return int((number + 1) * share + 1e-9) > int(number * share + 1e-9)


def training_store(path: str, kind: str, name: str = "train_data.zarr") -> RecordStore:
    """Open the imported training store at ``path``, or ``name`` in the folder ``path``."""
    location = path if exists(join(path, "zarr.json")) or not os.path.isdir(path) else join(path, name)
    store = RecordStore(location)
    if UNKNOWN not in store.vocabulary:
        raise UserError(f"{location} has no vocabulary with {UNKNOWN}; give one made with: dsinga data import {kind}")
    return store


SUFFIX = ".json"
MOST_CODES = 1 << 24  # the largest id of a token: each id up to it has a place in memory


class Tokenizer:
    """Turns texts into codes of tokens and back with Hugging Face's library ``tokenizers``.

    No tokens for a text's beginning or end are added; the file's truncation and padding are ignored.

    ``content`` is a tokenizer.json; ``symbols`` are the tokens of the codes 0, 1, ..., "" for a code without a token.
    """

    separator = ""  # between a text and its continuation

    def __init__(self, content: str, location: str):
        try:
            from tokenizers import Tokenizer as Library
        except ImportError:
            raise UserError(f"{location} needs tokenizers to be read: pip install 'dsinga[tokenizers]'") from None
        self.content = content
        try:
            self._library: Any = Library.from_str(content)
        except Exception as error:  # the library has no class of its own
            raise UserError(f"{location} is no tokenizer of Hugging Face's tokenizers: {error}") from None
        self._library.no_truncation()
        self._library.no_padding()
        codes = self._library.get_vocab(with_added_tokens=True)
        if not codes:
            raise UserError(f"{location} has no tokens; train the tokenizer before")
        largest = max(codes.values())
        if largest > MOST_CODES:
            raise UserError(
                f"{location} has the id {largest:,}, and ids are at most {MOST_CODES:,}; number the tokens from 0"
            )
        self._location = location
        tokens = {code: token for token, code in codes.items()}
        self.symbols = tuple(tokens.get(code, "") for code in range(max(tokens) + 1))

    def encode(self, text: str) -> list[int]:
        """Encode a text: the ids of ``tokenizers.Tokenizer.encode(text, add_special_tokens=False)``."""
        try:
            return self._library.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library has no class of its own
            raise UserError(
                f"{self._location} cannot encode the text ({error}); train the tokenizer again, or add this token to "
                "its vocabulary"
            ) from None

    def decode(self, codes: Iterable[int]) -> str:
        """Convert codes to text, without special tokens."""
        return self._library.decode([*codes])


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """Read the tokenizer of a tokenizer.json, or of a store of text imported with one; None for others."""
    location = absolute(path)
    if exists(join(location, "zarr.json")):
        return stored_tokenizer(RecordStore(location))
    if not location.endswith(SUFFIX):
        return None
    try:
        return Tokenizer(read_regular_text(location, METADATA_BYTES), location)
    except OSError as error:
        raise UserError(f"the tokenizer {location} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the tokenizer {location} is not UTF-8 text ({error.reason})") from None


def stored_tokenizer(store: RecordStore) -> Tokenizer | None:
    """Return the tokenizer of a store's text, None for characters or words."""
    return Tokenizer(store.tokenizer, store.location) if store.tokenizer else None
