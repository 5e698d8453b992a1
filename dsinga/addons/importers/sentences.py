"""The importer of sentences with one label each: a folder with a file of sentences for each class."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.addons.importers.batches import SUFFIXES, Batch, StoreContents, text_lines
from dsinga.addons.text.vocabulary import (
    RECORDS_PER_BATCH,
    check_held_out,
    check_min_count,
    common_words,
    encode_sentences,
    is_held_out,
    training_store,
)
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, register


class LabelledSentence(NamedTuple):
    """The words of a sentence, the code of its class, and its place among those of its class, from 0 to 1."""

    words: list[str]
    label: int
    place: float


@register("importer", "sentences")
def sentences(
    source: str, vocabulary: str | None = None, min_count: int = 2, held_out: float = 0.1, encoding: str = "utf-8"
) -> dict[str, StoreContents]:
    """Read a folder with a file for each class, plain, .gz or .xz: a sentence a line, its words separated by spaces.

    The classes are the names of the files, in alphabetical order: the extensions, if the names differ in these only.
    Words become lower case. A record has a code for each word, -1 after the end, and the class as its label; the
    classes are mixed evenly.

    Args:
        source: the folder; files whose names begin with a dot are left out.
        vocabulary: for further sentences, the store of the training sentences: words and classes get the same codes as
            there. Then nothing is held out.
        min_count: words that occur less often in the training sentences become <unk>, so that <unk> is learned.
        held_out: the share of the sentences of each class, evenly spaced, that is kept for tests. With it the
            destination is a folder with train_data.zarr and test_data.zarr; with 0 it is one store.
        encoding: of the files, such as latin-1.
    """
    check_min_count(min_count)
    check_held_out(held_out)
    files = class_files(source)
    classes = tuple(files)
    parts: tuple[list[LabelledSentence], list[LabelledSentence]] = ([], [])
    share = 0.0 if vocabulary else held_out
    for label, path in enumerate(files.values()):
        lines = list(sentence_lines(path, encoding))
        for number, words in enumerate(lines):
            parts[is_held_out(number, share)].append(LabelledSentence(words, label, number / len(lines)))
    train, test = (sorted(part, key=lambda sentence: (sentence.place, sentence.label)) for part in parts)
    if vocabulary:
        store = training_store(vocabulary, "sentences")
        if store.classes != classes:
            raise UserError(f"{source} has the classes {listed(classes)}, {vocabulary} {listed(store.classes)}")
        symbols = store.vocabulary
    else:
        symbols = common_words(Counter(word for sentence in train for word in sentence.words), min_count)
    if not share:
        return {"": _contents(train, classes, symbols)}
    if not test:
        raise UserError(f"{source} has {len(train)} sentences: with held_out {held_out} test_data.zarr would be empty")
    return {"train_data.zarr": _contents(train, classes, symbols), "test_data.zarr": _contents(test, classes, symbols)}


def class_files(folder: str) -> dict[str, str]:
    """Return the file of each class; raise UserError where ``folder`` has fewer than two files."""
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder; give a folder with a file of sentences for each class")
    paths = [entry.path for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith(".")]
    names = [os.path.splitext(os.path.basename(_plain(path))) for path in paths]
    column = 1 if len({stem for stem, _ in names}) == 1 else 0
    classes = [name[column].lstrip(".") for name in names]
    if len(paths) < 2 or len({*classes}) < len(classes):
        listing = listed(sorted(os.path.basename(path) for path in paths))
        raise UserError(f"{folder} has {listing}; give a folder with a file of sentences for each class, at least two")
    return dict(sorted(zip(classes, paths, strict=True)))


def _plain(path: str) -> str:
    """Return a path without the suffix of a compressed file."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in SUFFIXES else path


def sentence_lines(path: str, encoding: str, remedy: str = "remove the line") -> Iterator[list[str]]:
    """Yield the words of each line, in lower case.

    Raises UserError for an empty line, which ``remedy`` mends, for bytes that are not of the encoding, and for an empty
    file.
    """
    count = 0
    hint = " (for instance latin-1)" if encoding == "utf-8" else ""
    for count, line in text_lines(path, encoding, f"give the encoding of the file by --encoding{hint}"):
        words = line.lower().split()
        if not words:
            raise UserError(f"{path}:{count}: an empty sentence; {remedy}")
        yield words
    if not count:
        raise UserError(f"{path} has no sentences")


def _contents(part: Sequence[LabelledSentence], classes: tuple[str, ...], vocabulary: tuple[str, ...]) -> StoreContents:
    steps = max(len(sentence.words) for sentence in part)
    return StoreContents(_batches(part, vocabulary, steps), len(part), classes, vocabulary)


def _batches(part: Iterable[LabelledSentence], vocabulary: Sequence[str], steps: int) -> Generator[Batch]:
    sentences = iter(part)
    while batch := list(itertools.islice(sentences, RECORDS_PER_BATCH)):
        data = encode_sentences([sentence.words for sentence in batch], vocabulary, steps)
        yield Batch(data, np.array([sentence.label for sentence in batch]))
