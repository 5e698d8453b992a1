"""The importers of labelled sentences, of translated pairs of sentences, and of words with their contexts."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsinga.addons.importers.batches import SUFFIXES, Batch, StoreContents, in_batches, text_lines
from dsinga.addons.text.vocabulary import (
    RECORDS_PER_BATCH,
    SENTENCE_END,
    SENTENCE_START,
    UNKNOWN,
    check_held_out,
    check_min_count,
    common_words,
    encode_sentences,
    is_held_out,
    training_store,
)
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, register
from dsinga.data.locations import join


class LabelledSentence(NamedTuple):
    """A sentence's words and class code, and its place within its class, from 0 to 1."""

    words: list[str]
    label: int
    place: float


@register("importer", "sentences")
def sentences(
    source: str, vocabulary: str | None = None, min_count: int = 2, held_out: float = 0.1, encoding: str = "utf-8"
) -> dict[str, StoreContents]:
    """Read a folder with a file for each class, plain, .gz or .xz: a sentence a line, its words separated by spaces.

    The classes are the names of the files, in alphabetical order; if only extensions differ, the extensions. Words
    become lower case. A record has a code for each word, -1 after the end, and the class as its label; classes are
    mixed evenly.

    Args:
        source: the folder; files with names that begin with a dot are left out.
        vocabulary: for further sentences, the store of the training sentences, which gives the codes of words and
            classes. Then nothing is held out.
        min_count: rarer words of the training sentences become <unk>.
        held_out: the share of each class's sentences, evenly spaced, that is kept for tests. The destination is then a
            folder with train_data.zarr and test_data.zarr; with 0 it is one store.
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
    """Return the file of each class; raise UserError if ``folder`` has fewer than two files."""
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
    stem, suffix = os.path.splitext(path)
    return stem if suffix in SUFFIXES else path


def sentence_lines(path: str, encoding: str, remedy: str = "remove the line") -> Iterator[list[str]]:
    """Yield the words of each line, in lower case."""
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


MARKS = (SENTENCE_START, SENTENCE_END)
_log = logging.getLogger(__name__)


class SentencePair(NamedTuple):
    """The words of a sentence and its translation."""

    source: list[str]
    target: list[str]


@register("importer", "pairs")
def pairs(
    source: str,
    target: str | None = None,
    vocabulary: str | None = None,
    min_count: int = 2,
    max_length: int | None = None,
    encoding: str = "utf-8",
) -> dict[str, StoreContents]:
    """Read two files, plain, .gz or .xz, with a sentence a line, its words separated by spaces: ``source``, ``target``.

    Words become lower case. Rows are padded with -1.

    Args:
        source: the file of the sentences to translate.
        target: the file of their translations, with as many lines.
        vocabulary: for validation and test pairs, the folder of the imported training pairs, which gives the codes of
            words; unknown words get the code of <unk>.
        min_count: rarer words of the training sentences become <unk>.
        max_length: pairs with a longer sentence are left out, and counted in the log. By default all are kept.
        encoding: of the files, such as latin-1.
    """
    check_min_count(min_count)
    if max_length is not None and max_length < 1:
        raise UserError(f"max_length is {max_length}; give 1 or more words, or leave it out to keep all pairs")
    if target is None:
        raise UserError(f"{source} needs the file of its translations; give it by target (--target FILE)")
    if not os.path.exists(target):
        raise UserError(f"{target} does not exist; give the file of the translations, with a line for each of {source}")
    read = _read(source, target, encoding)
    short_pairs = [pair for pair in read if max_length is None or max(map(len, pair)) <= max_length]
    if not short_pairs:
        raise UserError(
            f"{source}: every pair has a sentence of more than {max_length} words; give a larger max_length"
        )
    if left_out := len(read) - len(short_pairs):
        _log.info("%s: %d of %d pairs are left out: more than %d words", source, left_out, len(read), max_length)
    words = [[pair.source for pair in short_pairs], [pair.target for pair in short_pairs]]
    if vocabulary is None:
        symbols = [common_words(Counter(itertools.chain.from_iterable(part)), min_count) for part in words]
        symbols[1] = (*symbols[1][:1], *MARKS, *symbols[1][1:])
    else:
        symbols = [
            training_store(join(vocabulary, name), "pairs").vocabulary for name in ("source.zarr", "target.zarr")
        ]
        if not {*MARKS} <= {*symbols[1]}:
            raise UserError(
                f"{vocabulary}/target.zarr lacks <s> and </s>; give a folder made with dsinga data import pairs"
            )
    return {
        "source.zarr": StoreContents(_sources(words[0], symbols[0]), len(short_pairs), (), symbols[0]),
        "target.zarr": StoreContents(_targets(words[1], symbols[1]), len(short_pairs), symbols[1], symbols[1]),
    }


def _read(source: str, target: str, encoding: str) -> list[SentencePair]:
    """Read all sentence pairs; raise UserError for unequal lengths, empty lines, and words that are marks."""
    remedy = "remove the line from both files"
    sides = [list(sentence_lines(path, encoding, remedy)) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        shorter, longer = sorted(((len(lines), path) for lines, path in zip(sides, (source, target), strict=True)))
        raise UserError(
            f"{longer[1]}:{shorter[0] + 1}: {shorter[1]} has no line for this one: it has {shorter[0]} lines, "
            f"{longer[1]} has {longer[0]}; each line must have its translation in the same line of the other file"
        )
    for number, words in enumerate(sides[1], 1):
        if mark := next((word for word in words if word in MARKS), None):
            raise UserError(f"{target}:{number}: the word {mark} marks the ends of sentences; remove it from the file")
    return [SentencePair(*words) for words in zip(*sides, strict=True)]


def _sources(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> Generator[Batch]:
    steps = max(map(len, sentences))
    for start in range(0, len(sentences), RECORDS_PER_BATCH):
        yield Batch(encode_sentences(sentences[start : start + RECORDS_PER_BATCH], vocabulary, steps), None)


def _targets(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str]) -> Generator[Batch]:
    steps = 1 + max(map(len, sentences))
    for start in range(0, len(sentences), RECORDS_PER_BATCH):
        part = sentences[start : start + RECORDS_PER_BATCH]
        data = encode_sentences([[SENTENCE_START, *words] for words in part], vocabulary, steps)
        labels = encode_sentences([[*words, SENTENCE_END] for words in part], vocabulary, steps)
        yield Batch(data, labels)


WORD = re.compile(r"<\w+>|[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[^\w\s]")
CONTEXTS_PER_BATCH = 1 << 16
FREQUENT = 1e-3  # words with a larger share of a text are sometimes left out: word2vec's default


@register("importer", "contexts")
def contexts(source: str, window: int = 4, min_count: int = 5, held_out: float = 0.1) -> dict[str, StoreContents]:
    """Read a file of text, plain, .gz or .xz, in UTF-8: records are contexts of words, with a word as their label.

    The destination is a folder. Its folder ngrams, with train_data.zarr and test_data.zarr, has a record for each word:
    the words before it, with the word as the label. Its folder skipgrams has, in two such stores, a record for each
    pair of near words: one word, with the other as the label. As in word2vec, a word's pairs are at most a random
    distance from 1 to ``window`` apart, and frequent words are left out at random. Words become lower case; punctuation
    marks are words of their own.

    Args:
        source: the file.
        window: the number of context words before a word, and the largest distance of a pair.
        min_count: rarer words become <unk>.
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
        stores[f"ngrams/{name}_data.zarr"] = _coded_contents(*ngrams(part, window), vocabulary)
        stores[f"skipgrams/{name}_data.zarr"] = _coded_contents(*skipgrams(part, window), vocabulary)
    return stores


def text_words(path: str) -> list[str]:
    """Read a text's words and punctuation marks, in lower case; raise UserError if it is not UTF-8."""
    return [word for _, line in text_lines(path) for word in WORD.findall(line.lower())]


def ngrams(text: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``window`` codes before each code of a text, (n, window), and the codes, (n,)."""
    return np.lib.stride_tricks.sliding_window_view(text, window)[:-1], text[window:]


def skipgrams(text: np.ndarray, window: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs of near codes of a text, (n,) and (n,), in random order.

    A code is kept with probability √(0.001 / its share of the text), at most 1. Each kept code is paired with the codes
    up to a random distance from 1 to ``window`` on both sides.
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


def _coded_contents(data: np.ndarray, labels: np.ndarray, vocabulary: Sequence[str]) -> StoreContents:
    return StoreContents(in_batches(data, labels, CONTEXTS_PER_BATCH), len(data), vocabulary=tuple(vocabulary))
