"""Texts as arrays of codes of words, in the way of Keras's TextVectorization, and sequences of several lengths."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from typing import Any

import numpy as np

from dsinga.base.arguments import shown
from dsinga.base.errors import UserError
from dsinga.data.vocabulary import SymbolEncoder

PADDING, UNKNOWN = "", "[UNK]"  # the words of the codes 0 and 1
STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation", "")
SPLIT = ("whitespace", "character", "")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextEncoder:
    """Turns texts into codes of words.

    Args:
        words: the words of the codes 2, 3, ...
        standardize: what is done to a text first, one of ``STANDARDIZE``.
        split: what is between words, one of ``SPLIT``.
        steps: the codes of a text, which is cut or filled with 0; without it as many as the longest text has.

    Raises:
        UserError: there is no such way, or a word occurs twice or cannot be one.
    """

    def __init__(
        self, words: Sequence[str], standardize: str = STANDARDIZE[0], split: str = SPLIT[0], steps: int | None = None
    ):
        for name, value, known in (("standardize", standardize, STANDARDIZE), ("split", split, SPLIT)):
            if value not in known:
                raise UserError(f"{name} is {shown(value)}; give {', '.join(map(repr, known))}")
        self.words, self.standardize, self.split, self.steps = tuple(words), standardize, split, steps
        unique = {PADDING, UNKNOWN}
        for word in self.words:
            if word in unique or "\n" in word:
                raise UserError(f"the vocabulary has {word!r}, which is there before, or is no word; leave it out")
            unique.add(word)
        self._encoder = SymbolEncoder([PADDING, UNKNOWN, *self.words], UNKNOWN)

    def tokens(self, text: str) -> list[str]:
        """Return the words of a text."""
        text = text.lower() if "lower" in self.standardize else text
        text = text.translate(_WITHOUT_PUNCTUATION) if "punctuation" in self.standardize else text
        if not self.split:
            return [text]
        return list(text) if self.split == "character" else text.split()

    def encode(self, texts: Iterable[str]) -> np.ndarray:
        """Return the codes (n, steps) int64 of texts, 0 after the end and 1 for other words."""
        codes = [self._encoder.encode_symbols(self.tokens(text)) for text in texts]
        return padded(codes, 0, self.steps)


def frequent_words(encoder: TextEncoder, texts: Iterable[str], most: int | None = None) -> list[str]:
    """Return the words of texts, the most frequent first, of equally frequent ones the last of the alphabet first."""
    counts = Counter(token for text in texts for token in encoder.tokens(text))
    words = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
    return [word for word in words if word not in (PADDING, UNKNOWN)][:most]


def texts_of(source: Any) -> list[str] | None:
    """Return the texts of a list, an array (n,) or (n, 1), or a column of pandas; None for what has no texts."""
    if isinstance(source, (list, tuple)):
        first = source[0] if len(source) else None
        first = first[0] if isinstance(first, (list, tuple, np.ndarray)) and len(first) == 1 else first
        if not isinstance(first, (str, bytes)):
            return None
    elif getattr(getattr(source, "dtype", None), "kind", "") not in tuple("OSUT") or hasattr(source, "dask"):
        return None
    texts = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in np.asarray(source).tolist()]
    texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    return texts if texts and all(isinstance(text, str) for text in texts) else None


def record_without_text(source: Any) -> int | None:
    """Return the number of the first record that has no text, None or NaN, say, among others; None without such."""
    if not isinstance(source, (list, tuple)) and getattr(getattr(source, "dtype", None), "kind", "") != "O":
        return None
    are_texts = [isinstance(each, (str, bytes)) for each in source]
    return are_texts.index(False) if any(are_texts) and not all(are_texts) else None


def sequences_of(source: Any) -> np.ndarray | None:
    """Return sequences of codes of several lengths as an array (n, longest) int64, -1 after the ends; None for others.

    ``source`` is a list, an array of objects, or a RaggedTensor of TensorFlow.
    """
    items = source.to_list() if type(source).__name__ == "RaggedTensor" else source
    is_array = isinstance(items, np.ndarray) and items.dtype == np.object_
    if not (isinstance(items, (list, tuple)) or is_array) or not all(isinstance(row, Sized) for row in items):
        return None
    if len({len(row) for row in items}) < 2:
        return None
    rows = [np.asarray(row) for row in items if not isinstance(row, (str, bytes))]
    are_codes = len(rows) == len(items) and all(row.ndim == 1 and row.dtype.kind in "iu" for row in rows if len(row))
    return padded(rows, -1) if are_codes else None


def padded(rows: Sequence[Any], after: int, steps: int | None = None) -> np.ndarray:
    """Return sequences of codes as an array (n, ``steps``) int64, by default of the longest, ``after`` their ends."""
    steps = max(1, *map(len, rows)) if steps is None and rows else steps or 1
    array = np.full((len(rows), steps), after, np.int64)
    for target, row in zip(array, rows, strict=True):
        target[: len(row)] = row[:steps]
    return array
