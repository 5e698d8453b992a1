"""Texts as arrays of codes of words, in the way of Keras's TextVectorization."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dsinga.addons.text.vocabulary import SymbolEncoder
from dsinga.base.arguments import shown
from dsinga.base.errors import UserError
from dsinga.nn.model.given_data import padded

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
