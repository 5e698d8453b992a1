"""The importer of tagged sentences in the CoNLL format: a word and its tag per line, empty lines between sentences.

It writes a folder of stores with a row per sentence and a column per word, padded with -1. ``words.zarr`` has
lower-case words, with the tags as labels. Features that unknown words have too are in ``shapes.zarr`` (Xx for "Paris",
XdX for "B52S"), ``prefixes.zarr`` and ``suffixes.zarr`` of three letters.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dsinga.addons.importers.batches import Batch, StoreContents, text_lines
from dsinga.addons.text.vocabulary import UNKNOWN, check_min_count, common_words
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest, register
from dsinga.data.locations import join
from dsinga.data.stores.record_store import RecordStore

SENTENCES_PER_BATCH = 1024
AFFIX_LENGTH = 3


class Sentence(NamedTuple):
    """A sentence's words and tags, and its first line in the file."""

    words: list[str]
    tags: list[str]
    line: int


class CorpusSummary(NamedTuple):
    """A corpus's counts and vocabularies, read first: sentences, longest sentence, words and tags by code."""

    sentences: int
    longest: int
    vocabularies: Mapping[str, tuple[str, ...]]
    classes: tuple[str, ...]


def shape_of(word: str) -> str:
    """Return a word's shape: X for capitals, x for small letters, d for digits, without repetitions."""
    kinds = ("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdigit() else c for c in word)
    return "".join(kind for kind, _ in itertools.groupby(kinds))


FEATURES: dict[str, Callable[[str], str]] = {
    "words": str.lower,
    "shapes": shape_of,
    "prefixes": lambda word: word[:AFFIX_LENGTH].lower(),
    "suffixes": lambda word: word[-AFFIX_LENGTH:].lower(),
}


@register("importer", "conll")
def conll(
    source: str, vocabulary: str | None = None, min_count: int = 2, has_label: bool = True
) -> dict[str, StoreContents]:
    """Read a file of sentences, plain, .gz or .xz: words in the first column, tags in the last.

    Columns are separated by tabs if the line has any, else by spaces; lines that begin with -DOCSTART- are skipped.
    Tags O, B-x and I-x get the codes 0, 2k + 1 and 2k + 2, with the types x in alphabetical order. Other tags get codes
    in alphabetical order.

    Args:
        source: the file.
        vocabulary: for validation and test sentences, the folder of the imported training sentences. Words and tags get
            its codes, unknown words the code of <unk>; unknown tags are an error.
        min_count: rarer words of the training sentences become <unk>.
        has_label: whether the file has tags; otherwise all labels are 0, padded with -1 after the last word.
    """
    check_min_count(min_count)
    if vocabulary is None:
        summary = _summarise_training(source, has_label, min_count)
    else:
        summary = _summarise_with_vocabulary(source, has_label, vocabulary)
    return {f"{name}.zarr": _contents(source, has_label, name, summary) for name in FEATURES}


def sentences(path: str, has_label: bool) -> Iterator[Sentence]:
    """Yield the sentences of a file."""
    count = columns = 0
    sentence = Sentence([], [], 1)
    for number, line in itertools.chain(text_lines(path), [(0, "")]):
        if not line.strip() or line.startswith("-DOCSTART-"):
            if sentence.words:
                count += 1
                yield sentence
            sentence = Sentence([], [], number + 1)
            continue
        cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
        if has_label and len(cells) < 2:
            raise UserError(f"{path}:{number}: {cells[0]!r} has no tag; use --no-label for a file without tags")
        columns = columns or len(cells)
        if len(cells) != columns:
            raise UserError(
                f"{path}:{number}: {len(cells)} columns, but the lines before have {columns}; write one word per line, "
                "its tag last, and an empty line between sentences"
            )
        sentence.words.append(cells[0])
        sentence.tags.append(cells[-1] if has_label else "")
    if not count:
        raise UserError(f"{path} has no sentences")


def _summarise_training(path: str, has_label: bool, min_count: int) -> CorpusSummary:
    counters: dict[str, Counter[str]] = {name: Counter() for name in FEATURES}
    tags: set[str] = set()
    count = longest = 0
    for words, sentence_tags, _ in sentences(path, has_label):
        count, longest = count + 1, max(longest, len(words))
        tags.update(sentence_tags)
        for name, feature in FEATURES.items():
            counters[name].update(map(feature, words))
    vocabularies = {name: common_words(counter, min_count) for name, counter in counters.items()}
    return CorpusSummary(count, longest, vocabularies, ordered_tags(tags) if has_label else ())


def _summarise_with_vocabulary(path: str, has_label: bool, folder: str) -> CorpusSummary:
    stores = {name: RecordStore(join(folder, f"{name}.zarr")) for name in FEATURES}
    for store in stores.values():
        if not store.vocabulary:
            raise UserError(f"{store.location} has no vocabulary; give a folder made with: dsinga data import conll")
    classes = stores["words"].classes
    count = longest = 0
    for words, tags, line in sentences(path, has_label):
        count, longest = count + 1, max(longest, len(words))
        for at, tag in enumerate(tags if has_label else ()):
            if tag not in classes:
                raise UserError(
                    f"{path}:{line + at}: tag {tag!r} is not among the tags of {folder}{nearest(tag, classes)}; "
                    f"they are {listed(classes)}"
                )
    return CorpusSummary(count, longest, {name: store.vocabulary for name, store in stores.items()}, classes)


def ordered_tags(tags: set[str]) -> tuple[str, ...]:
    """Sort tags in the order of their codes: O, then B-x and I-x for each type x; other tags alphabetically."""
    if not all(re.fullmatch(r"O|[BI]-.+", tag) for tag in tags):
        return tuple(sorted(tags))
    types = sorted({tag[2:] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def _contents(path: str, has_label: bool, name: str, summary: CorpusSummary) -> StoreContents:
    classes = summary.classes if name == "words" else ()
    batches = _batches(path, has_label, name, summary)
    return StoreContents(batches, summary.sentences, classes, summary.vocabularies[name])


def _batches(path: str, has_label: bool, name: str, summary: CorpusSummary) -> Generator[Batch]:
    codes = {symbol: code for code, symbol in enumerate(summary.vocabularies[name])}
    tag_codes = {tag: code for code, tag in enumerate(summary.classes)} if has_label else {"": 0}
    feature, unknown = FEATURES[name], codes[UNKNOWN]
    reader = sentences(path, has_label)
    while batch := list(itertools.islice(reader, SENTENCES_PER_BATCH)):
        data = np.full((len(batch), summary.longest), -1, np.int32)
        labels = data.copy()
        for row, (words, tags, _) in enumerate(batch):
            data[row, : len(words)] = [codes.get(feature(word), unknown) for word in words]
            labels[row, : len(words)] = [tag_codes[tag] for tag in tags]
        yield Batch(data, labels if name == "words" else None)
