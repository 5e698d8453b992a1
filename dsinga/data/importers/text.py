"""A text as one long sequence of codes, of characters or of words, to train language models on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from dsinga.data.importers.files import opened
from dsinga.data.importers.records import Batch, StoreContents
from dsinga.data.vocabulary import read_vocabulary
from dsinga.errors import UserError

BLOCK = 1 << 20  # bytes
WORDS = 1 << 16  # in a batch
END_OF_LINE, UNKNOWN = "</s>", "<unk>"


class TextSummary(NamedTuple):
    """What must be known of a text before it can be written: how many codes it has, what they stand for."""

    length: int
    vocabulary: tuple[str, ...]
    skip: bool  # what the vocabulary does not have


def text(
    source: str,
    words: bool = False,
    vocabulary: str | None = None,
    skip_unseen: bool = False,
    held_out: float = 0.0,
) -> dict[str, StoreContents]:
    """Read a file of text, plain, .gz or .xz: a record is the code of one character or word.

    Characters are bytes, whatever the encoding, as in SINGA; their codes are in the order of the bytes. Words are what
    stands between blanks in UTF-8 text, and </s> at the end of each line; their codes are in the order of how often
    they occur.

    Args:
        source: the file.
        words: whether records are words, not characters.
        vocabulary: a store that was imported before, or a file of characters or words, whose codes are used. A word
            that it does not have is <unk>, where it has that, else an error, as is such a character.
        skip_unseen: whether such words and characters are left out instead, as SINGA's rnnlm example does.
        held_out: the share of the text, at its end, that is kept for tests. Then the destination is a folder with
            train_data.zarr and test_data.zarr.
    """
    if not 0 <= held_out < 1:
        raise UserError(f"held_out is {held_out}; give the share of the text to keep for tests, from 0 to below 1")
    facts = _survey(source, words, vocabulary, skip_unseen)
    cut = facts.length - round(facts.length * held_out)
    if not held_out:
        return {"": _part(source, words, facts, 0, facts.length)}
    if not 0 < cut < facts.length:
        raise UserError(f"{source} has {facts.length} {_unit(words)}s; held_out {held_out} leaves a part empty")
    return {
        "train_data.zarr": _part(source, words, facts, 0, cut),
        "test_data.zarr": _part(source, words, facts, cut, facts.length),
    }


def _survey(path: str, words: bool, vocabulary: str | None, skip: bool) -> TextSummary:
    counts: Counter[str] = Counter()
    for block in _words(path) if words else _characters(path):
        counts.update(block)
    if not counts:
        raise UserError(f"{path} has no {_unit(words)}s")
    if vocabulary is None:
        ordered = [symbol for symbol, _ in counts.most_common()] if words else sorted(counts)
        return TextSummary(counts.total(), tuple(ordered), skip)
    symbols = read_vocabulary(vocabulary, words)
    if not skip or UNKNOWN in symbols:
        return TextSummary(counts.total(), symbols, skip)
    length = sum(counts[symbol] for symbol in symbols)
    if not length:
        raise UserError(f"{path} has none of the {_unit(words)}s of {vocabulary}; give the vocabulary of such a text")
    return TextSummary(length, symbols, skip)


def _characters(path: str) -> Iterator[str]:
    """Yield the bytes of a text in blocks, as characters of Latin-1: each byte is one."""
    with opened(path) as (file, _):
        while block := file.read(BLOCK):
            yield block.decode("latin-1")


def _words(path: str) -> Iterator[list[str]]:
    """Yield the words of a text line by line; raise UserError for a line that is not UTF-8."""
    with opened(path) as (file, _):
        for number, line in enumerate(file, 1):
            try:
                yield [*line.decode().split(), END_OF_LINE]
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: not UTF-8 text ({error.reason}); import characters") from None


def _part(path: str, words: bool, facts: TextSummary, start: int, stop: int) -> StoreContents:
    return StoreContents(_between(path, words, facts, start, stop), stop - start, vocabulary=facts.vocabulary)


def _between(path: str, words: bool, facts: TextSummary, start: int, stop: int) -> Generator[Batch]:
    """Yield the codes of the text from number ``start`` to ``stop``."""
    at = 0
    for codes in _word_codes(path, facts) if words else _character_codes(path, facts):
        own = codes[max(start - at, 0) : max(stop - at, 0)]
        at += len(codes)
        if len(own):
            yield Batch(own, None)


def _character_codes(path: str, facts: TextSummary) -> Iterator[np.ndarray]:
    table = np.full(256, -1, np.int16)
    for code, symbol in enumerate(facts.vocabulary):
        if len(symbol) != 1 or ord(symbol) > 255:
            raise UserError(f"the vocabulary has {symbol!r}, which is no byte; for words say so (--words)")
        table[ord(symbol)] = code
    at = 0
    for block in _characters(path):
        codes = table[np.frombuffer(block.encode("latin-1"), np.uint8)]
        unseen = np.flatnonzero(codes < 0)
        if len(unseen) and not facts.skip:
            symbol = block[unseen[0]]
            raise UserError(
                f"{path}: byte {at + unseen[0]} is the character {symbol!r}, which the vocabulary lacks; import all "
                "parts of a text at once (--held-out), or leave such characters out (--skip-unseen)"
            )
        at += len(block)
        yield codes[codes >= 0].astype(np.uint8)


def _word_codes(path: str, facts: TextSummary) -> Iterator[np.ndarray]:
    codes = {symbol: code for code, symbol in enumerate(facts.vocabulary)}
    unknown = codes.get(UNKNOWN)
    held: list[int] = []
    for number, line in enumerate(_words(path), 1):
        for word in line:
            code = codes.get(word, unknown)
            if code is not None:
                held.append(code)
            elif not facts.skip:
                raise UserError(
                    f"{path}:{number}: the word {word!r} is not in the vocabulary, which has no {UNKNOWN} either; "
                    "--skip-unseen leaves such words out"
                )
        if len(held) >= WORDS:
            yield np.array(held, np.int32)
            held = []
    yield np.array(held, np.int32)


def _unit(words: bool) -> str:
    return "word" if words else "character"
