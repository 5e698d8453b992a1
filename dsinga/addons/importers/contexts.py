"""The importer of words and their contexts: what word vectors are learned from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dsinga.addons.importers.batches import StoreContents, in_batches, text_lines
from dsinga.addons.text.vocabulary import UNKNOWN, check_held_out, check_min_count, common_words
from dsinga.base.errors import UserError
from dsinga.base.registry import register

WORD = re.compile(r"<\w+>|[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[^\w\s]")
RECORDS_PER_BATCH = 1 << 16
FREQUENT = 1e-3  # the share of a text from which on a word is left out now and then: word2vec's default


@register("importer", "contexts")
def contexts(source: str, window: int = 4, min_count: int = 5, held_out: float = 0.1) -> dict[str, StoreContents]:
    """Read a file of text, plain, .gz or .xz, in UTF-8: records are contexts of words, with a word as their label.

    The destination is a folder. The stores ngrams/train_data.zarr and test_data.zarr have a record for each word: the
    words before it, with the word itself as the label. skipgrams/train_data.zarr and test_data.zarr have a record for
    each pair of near words: one word, with the other as the label. As in word2vec, the distance of the pairs of a word
    is at most a random number from 1 to ``window``, and frequent words are left out at random; the seed is fixed, the
    pairs are in random order. Words are in lower case, without the punctuation, which counts as words.

    Args:
        source: the file.
        window: how many words before a word are its context, and how far apart the words of a pair may be.
        min_count: words that occur less often become <unk>.
        held_out: the share of the text, at its end, that is kept for tests.
    """
    check_min_count(min_count)
    check_held_out(held_out)
    if window < 1:
        raise UserError(f"window is {window}; give the number of words before a word that are its context, at least 1")
    words = text_words(source)
    split = len(words) - round(len(words) * held_out)
    if not held_out or split <= window or len(words) - split <= window:
        raise UserError(
            f"{source} has {len(words)} words: with held_out {held_out} and window {window}, training or test would "
            "have no record; give a longer text, or another share"
        )
    vocabulary = common_words(Counter(word for word in words[:split] if word != UNKNOWN), min_count)
    codes = {word: code for code, word in enumerate(vocabulary)}
    text = np.array([codes.get(word, 0) for word in words], np.int32)
    stores = {}
    for name, part in (("train", text[:split]), ("test", text[split:])):
        stores[f"ngrams/{name}_data.zarr"] = _contents(*ngrams(part, window), vocabulary)
        stores[f"skipgrams/{name}_data.zarr"] = _contents(*skipgrams(part, window), vocabulary)
    return stores


def text_words(path: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case; raise UserError where it is not UTF-8."""
    return [word for _, line in text_lines(path) for word in WORD.findall(line.lower())]


def ngrams(text: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``window`` codes before each code of a text, (n, window), and these codes, (n,)."""
    return np.lib.stride_tricks.sliding_window_view(text, window)[:-1], text[window:]


def skipgrams(text: np.ndarray, window: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of codes that are near each other in a text, (n,) and (n,), in random order.

    A code is kept with probability √(0.001 / its share of the text), at most 1. Of those kept, each makes pairs with
    the codes up to a random distance from 1 to ``window`` on both sides.
    """
    rng = np.random.default_rng(seed)
    shares = np.bincount(text) / len(text)
    text = text[rng.random(len(text)) < np.sqrt(FREQUENT / np.maximum(shares, FREQUENT))[text]]
    reach = rng.integers(1, window + 1, len(text))
    pairs = []
    for distance in range(1, window + 1):
        left, right = text[:-distance], text[distance:]
        pairs += [
            np.stack([left, right])[:, reach[:-distance] >= distance],
            np.stack([right, left])[:, reach[distance:] >= distance],
        ]
    words, neighbours = rng.permutation(np.concatenate(pairs, axis=1), axis=1)
    return words, neighbours


def _contents(data: np.ndarray, labels: np.ndarray, vocabulary: Sequence[str]) -> StoreContents:
    return StoreContents(in_batches(data, labels, RECORDS_PER_BATCH), len(data), vocabulary=tuple(vocabulary))
