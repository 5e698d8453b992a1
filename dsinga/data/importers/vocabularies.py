"""Vocabularies of the words of imported sentences, their codes, and the share of records that is kept for tests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dsinga.data.filesystem import exists, join
from dsinga.data.store import RecordStore
from dsinga.data.vocabulary import UNKNOWN, SymbolEncoder
from dsinga.errors import UserError

RECORDS_PER_BATCH = 1024


def check_min_count(min_count: int) -> None:
    """Raise UserError for a ``min_count`` below 1."""
    if min_count < 1:
        raise UserError(f"min_count is {min_count}; give 1, which keeps every word, or more")


def check_held_out(share: float) -> None:
    """Raise UserError for a share of the records that is not from 0 to below 1."""
    if not 0 <= share < 1:
        raise UserError(f"held_out is {share}; give the fraction of the records to keep for tests, from 0 to below 1")


def common_words(counts: Counter[str], min_count: int) -> tuple[str, ...]:
    """Return <unk> and the words that occur ``min_count`` times or more, the most frequent first."""
    return (UNKNOWN, *(word for word, times in counts.most_common() if times >= min_count and word != UNKNOWN))


def encode_sentences(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str], steps: int) -> np.ndarray:
    """Return the codes (n, ``steps``) int32 of sentences, -1 after the end; unknown words get the code of <unk>.

    A sentence that is longer than ``steps`` is cut.
    """
    encoder = SymbolEncoder(vocabulary)
    data = np.full((len(sentences), steps), -1, np.int32)
    for row, words in enumerate(sentences):
        data[row, : len(words)] = encoder.encode_symbols(words[:steps])
    return data


def is_held_out(number: int, share: float) -> bool:
    """Whether record ``number``, from 0, is kept for tests: evenly spaced, the last of each 1/``share`` records."""
    return int((number + 1) * share + 1e-9) > int(number * share + 1e-9)


def training_store(path: str, kind: str, name: str = "train_data.zarr") -> RecordStore:
    """Return the imported training store at ``path``, or ``name`` in the folder ``path``.

    Raises UserError where it has no vocabulary.
    """
    location = path if exists(join(path, "zarr.json")) or not os.path.isdir(path) else join(path, name)
    store = RecordStore(location)
    if UNKNOWN not in store.vocabulary:
        raise UserError(f"{location} has no vocabulary with {UNKNOWN}; give one made with: dsinga data import {kind}")
    return store
