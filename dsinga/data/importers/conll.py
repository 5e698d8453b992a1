"""Sentences with a tag for each word, in columns as at the CoNLL conferences: a word a line, empty lines between.

A folder of stores is made, all with a row for each sentence and a column for each of its words, -1 after the end:
``words.zarr``, in lower case, with the tags as labels; and what is seen of words that were never met before:
``shapes.zarr`` (Xx for "Paris", XdX for "B52S"), ``prefixes.zarr`` and ``suffixes.zarr`` of three letters.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from dsinga.data.filesystem import join
from dsinga.data.importers.files import opened
from dsinga.data.importers.records import Batch, StoreContents
from dsinga.data.store import RecordStore
from dsinga.errors import UserError
from dsinga.registry import nearest

UNKNOWN = "<unk>"
SENTENCES = 1024  # in a batch
AFFIX = 3


class Sentence(NamedTuple):
    """The words of a sentence, the tag of each, and the line of the file where it begins."""

    words: list[str]
    tags: list[str]
    line: int


class CorpusSummary(NamedTuple):
    """What must be known of a file before its sentences can be written: how many, how long, which codes."""

    sentences: int
    longest: int
    vocabularies: Mapping[str, tuple[str, ...]]
    classes: tuple[str, ...]


def shape_of(word: str) -> str:
    """Return the word with X for capitals, x for small letters, d for digits, each once in a row."""
    kinds = ("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdigit() else c for c in word)
    return "".join(kind for kind, _ in itertools.groupby(kinds))


FEATURES: dict[str, Callable[[str], str]] = {
    "words": str.lower,
    "shapes": shape_of,
    "prefixes": lambda word: word[:AFFIX].lower(),
    "suffixes": lambda word: word[-AFFIX:].lower(),
}


def conll(
    source: str, vocabulary: str | None = None, min_count: int = 2, has_label: bool = True
) -> dict[str, StoreContents]:
    """Read a file of sentences, plain, .gz or .xz: the first column are words, the last one tags.

    Columns are parted by tabs where a line has one, else by spaces; lines that begin with -DOCSTART- are left out. Tags
    O, B-x and I-x get the codes 0, 2k + 1 and 2k + 2, with the types x in alphabetical order; other kinds of tags are
    in alphabetical order themselves.

    Args:
        source: the file.
        vocabulary: the folder made of the training sentences, for others: words and tags get the codes that they have
            there, words that it has not met that of <unk>. A tag that it has not met is an error.
        min_count: what occurs less often in the training sentences is <unk> there, too, so that <unk> is learned.
        has_label: whether there are tags; without them all labels are 0, which says how long the sentences are.
    """
    if min_count < 1:
        raise UserError(f"min_count is {min_count}; give 1, to know every word, or more")
    facts = _survey(source, has_label, min_count) if vocabulary is None else _known(source, has_label, vocabulary)
    return {f"{name}.zarr": _part(source, has_label, name, facts) for name in FEATURES}


def sentences(path: str, has_label: bool) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    Raises UserError for a line with a word and no tag, or with other columns than those before, and for a file without
    any sentence.
    """
    found = columns = 0
    sentence = Sentence([], [], 1)
    with opened(path) as (file, _):
        for number, raw in enumerate(itertools.chain(file, [b""]), 1):
            cells = _cells(path, number, raw)
            if cells is None:
                if sentence.words:
                    found += 1
                    yield sentence
                sentence = Sentence([], [], number + 1)
                continue
            if has_label and len(cells) < 2:
                raise UserError(f"{path}:{number}: {cells[0]!r} has no tag; --no-label says that there are none")
            columns = columns or len(cells)
            if len(cells) != columns:
                raise UserError(
                    f"{path}:{number}: {len(cells)} columns where the lines before have {columns}; give each line one "
                    "word, its tag last, and put an empty line between sentences"
                )
            sentence.words.append(cells[0])
            sentence.tags.append(cells[-1] if has_label else "")
    if not found:
        raise UserError(f"{path} has no sentences")


def _cells(path: str, number: int, raw: bytes) -> list[str] | None:
    """Return the columns of a line, None for a line between sentences."""
    try:
        line = raw.decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{number}: not UTF-8 text ({error.reason})") from None
    if not line.strip() or line.startswith("-DOCSTART-"):
        return None
    return [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]


def _survey(path: str, has_label: bool, min_count: int) -> CorpusSummary:
    """Return what the training sentences teach."""
    counters: dict[str, Counter[str]] = {name: Counter() for name in FEATURES}
    tags: set[str] = set()
    count = longest = 0
    for words, given, _ in sentences(path, has_label):
        count, longest = count + 1, max(longest, len(words))
        tags.update(given)
        for name, feature in FEATURES.items():
            counters[name].update(map(feature, words))
    vocabularies = {
        name: (UNKNOWN, *(one for one, times in counter.most_common() if times >= min_count))
        for name, counter in counters.items()
    }
    return CorpusSummary(count, longest, vocabularies, ordered_tags(tags) if has_label else ())


def _known(path: str, has_label: bool, folder: str) -> CorpusSummary:
    """Return what is known from the folder of the training sentences; raise UserError for a tag that it lacks."""
    stores = {name: RecordStore(join(folder, f"{name}.zarr")) for name in FEATURES}
    for store in stores.values():
        if not store.vocabulary:
            raise UserError(f"{store.location} has no vocabulary; give the folder that an import of conll has made")
    classes = stores["words"].classes
    count = longest = 0
    for words, tags, line in sentences(path, has_label):
        count, longest = count + 1, max(longest, len(words))
        for at, tag in enumerate(tags if has_label else ()):
            if tag not in classes:
                raise UserError(
                    f"{path}:{line + at}: tag {tag!r} is none of those of {folder}{nearest(tag, classes)}; "
                    f"they are {', '.join(classes)}"
                )
    return CorpusSummary(count, longest, {name: store.vocabulary for name, store in stores.items()}, classes)


def ordered_tags(tags: set[str]) -> tuple[str, ...]:
    """Return tags in the order of their codes: O, then B-x and I-x for each type x, or just sorted if others are in."""
    if not all(re.fullmatch(r"O|[BI]-.+", tag) for tag in tags):
        return tuple(sorted(tags))
    types = sorted({tag[2:] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in types for prefix in "BI"))


def _part(path: str, has_label: bool, name: str, facts: CorpusSummary) -> StoreContents:
    labelled = name == "words"
    classes = facts.classes if labelled else ()
    return StoreContents(_batches(path, has_label, name, facts), facts.sentences, classes, facts.vocabularies[name])


def _batches(path: str, has_label: bool, name: str, facts: CorpusSummary) -> Generator[Batch]:
    codes = {one: code for code, one in enumerate(facts.vocabularies[name])}
    tag_codes = {tag: code for code, tag in enumerate(facts.classes)} if has_label else {"": 0}
    feature, unknown = FEATURES[name], codes[UNKNOWN]
    read = sentences(path, has_label)
    while some := list(itertools.islice(read, SENTENCES)):
        data = np.full((len(some), facts.longest), -1, np.int32)
        labels = data.copy()
        for row, (words, tags, _) in enumerate(some):
            data[row, : len(words)] = [codes.get(feature(word), unknown) for word in words]
            labels[row, : len(words)] = [tag_codes[tag] for tag in tags]
        yield Batch(data, labels if name == "words" else None)
