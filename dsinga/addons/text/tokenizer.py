"""Tokenizers of Hugging Face: a file tokenizer.json, read by the library tokenizers, as the vocabulary of a text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.regular_files import METADATA_BYTES, read_regular_text
from dsinga.data.filesystem import absolute, exists, join
from dsinga.data.stores.record_store import RecordStore

SUFFIX = ".json"
MOST_CODES = 1 << 24  # the largest id of a token: each id up to it has a place in memory


class Tokenizer:
    """Turns texts into codes of tokens and back, as Hugging Face's library ``tokenizers`` does.

    No tokens for the beginning or the end of a text are added, and what the file says of truncation and padding is
    ignored. Raises UserError where the library is not installed, or cannot read the tokenizer.

    Attributes:
        content: the content of its tokenizer.json.
        symbols: the tokens of the codes 0, 1, ...; "" for a code without a token.

    Args:
        content: the content of a tokenizer.json.
        location: where it is, for messages.
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
        """Return the codes of a text: the ids of ``tokenizers.Tokenizer.encode(text, add_special_tokens=False)``."""
        try:
            return self._library.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library has no class of its own
            raise UserError(
                f"{self._location} cannot encode the text ({error}); train the tokenizer again, or add this token to "
                "its vocabulary"
            ) from None

    def decode(self, codes: Iterable[int]) -> str:
        """Return the text of codes, without special tokens."""
        return self._library.decode([*codes])


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """Return the tokenizer of a file tokenizer.json, or of a store of a text that was imported with one.

    None for any other store or file. Raises UserError for a tokenizer that cannot be read.
    """
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
    """Return the tokenizer with which the text of a store was imported, None for characters or words."""
    return Tokenizer(store.tokenizer, store.location) if store.tokenizer else None
