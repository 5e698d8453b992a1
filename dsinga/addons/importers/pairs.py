"""The importer of sentence pairs: two text files, a sentence a line, where equal lines are translations of each other.

It writes ``source.zarr`` and ``target.zarr`` with a row for each pair. A row of the target begins with <s>; its labels
are the words that follow each of its codes, the last one </s>.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import Counter
from collections.abc import Generator, Sequence
from typing import NamedTuple

from dsinga.addons.importers.batches import Batch, StoreContents
from dsinga.addons.importers.sentences import sentence_lines
from dsinga.addons.text.vocabulary import (
    RECORDS_PER_BATCH,
    SENTENCE_END,
    SENTENCE_START,
    check_min_count,
    common_words,
    encode_sentences,
    training_store,
)
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.filesystem import join

MARKS = (SENTENCE_START, SENTENCE_END)
_log = logging.getLogger(__name__)


class SentencePair(NamedTuple):
    """The words of a sentence and of its translation."""

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
        vocabulary: for validation and test pairs, the folder of the imported training pairs: words get the same codes
            as there, other words the code of <unk>.
        min_count: words that occur less often in the training sentences become <unk>, so that <unk> is learned.
        max_length: pairs with a sentence of more words are left out; their number is logged. By default none is.
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
    """Return all pairs; raise UserError for files of unequal length, empty lines, and words that are marks."""
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
