"""The importer of a text as one long sequence of codes of characters or words, to train language models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from dsinga.addons.importers.batches import Batch, StoreContents, opened, text_lines
from dsinga.addons.text.vocabulary import UNKNOWN, Tokenizer, read_tokenizer, read_vocabulary
from dsinga.base.errors import UserError
from dsinga.base.registry import register

BLOCK_BYTES = 1 << 20
WORDS_PER_BATCH = 1 << 16
END_OF_LINE = "</s>"


class TextSummary(NamedTuple):
    """The plan of an import: the number of codes, the vocabulary, whether to skip other symbols.

    A text of tokens also has their codes and tokenizer.
    """

    length: int
    vocabulary: tuple[str, ...]
    skip_unseen: bool
    codes: np.ndarray | None = None
    tokenizer: str = ""


@register("importer", "text")
def text(
    source: str,
    words: bool = False,
    vocabulary: str | None = None,
    skip_unseen: bool = False,
    held_out: float = 0.0,
) -> dict[str, StoreContents]:
    """Read a file of text, plain, .gz or .xz: a record is the code of one character or word.

    Characters are bytes in any encoding, as in SINGA, with codes in byte order. Words are separated by white space in
    UTF-8 text, with </s> added at line ends, and have codes by decreasing frequency. A tokenizer of Hugging Face makes
    tokens of the whole UTF-8 text, which is then in memory.

    Args:
        source: the file.
        words: whether records are words, not characters.
        vocabulary: an imported store, a file of characters or words, or a tokenizer.json of Hugging Face, which gives
            the codes. Unknown words become <unk> if the vocabulary has it; other unknown words or characters are an
            error.
        skip_unseen: leave out unknown words and characters instead.
        held_out: the fraction of the text, at its end, that is kept for tests. The destination is then a folder with
            train_data.zarr and test_data.zarr.
    """
    if not 0 <= held_out < 1:
        raise UserError(f"held_out is {held_out}; give the fraction of the text to keep for tests, from 0 to below 1")
    summary = _summarise(source, words, vocabulary, skip_unseen)
    split = summary.length - round(summary.length * held_out)
    if not held_out:
        return {"": _contents(source, words, summary, 0, summary.length)}
    if not 0 < split < summary.length:
        unit = "token" if summary.tokenizer else _unit(words)
        raise UserError(
            f"{source} has {summary.length} {unit}s: with held_out {held_out} either train_data.zarr or test_data.zarr "
            "would be empty"
        )
    return {
        "train_data.zarr": _contents(source, words, summary, 0, split),
        "test_data.zarr": _contents(source, words, summary, split, summary.length),
    }


def _summarise(path: str, words: bool, vocabulary: str | None, skip_unseen: bool) -> TextSummary:
    if vocabulary is not None and (tokenizer := read_tokenizer(vocabulary)) is not None:
        return _summarise_tokens(path, tokenizer, words or skip_unseen)
    counts: Counter[str] = Counter()
    for block in _words(path) if words else _characters(path):
        counts.update(block)
    if not counts:
        raise UserError(f"{path} has no {_unit(words)}s")
    if vocabulary is None:
        ordered = [symbol for symbol, _ in counts.most_common()] if words else sorted(counts)
        return TextSummary(counts.total(), tuple(ordered), skip_unseen)
    symbols = read_vocabulary(vocabulary, words)
    if not skip_unseen or UNKNOWN in symbols:
        return TextSummary(counts.total(), symbols, skip_unseen)
    length = sum(counts[symbol] for symbol in symbols)
    if not length:
        raise UserError(
            f"{path} has none of the {_unit(words)}s of {vocabulary}; give the vocabulary of a similar text"
        )
    return TextSummary(length, symbols, skip_unseen)


def _summarise_tokens(path: str, tokenizer: Tokenizer, has_other_options: bool) -> TextSummary:
    if has_other_options:
        raise UserError("a tokenizer makes tokens of the whole text; leave words and skip_unseen out")
    with opened(path) as (file, _):
        content = file.read()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8 text ({error.reason}); convert it to UTF-8") from None
    codes = np.array(tokenizer.encode(text), np.int32)
    if not len(codes):
        raise UserError(f"{path} has no tokens")
    return TextSummary(len(codes), tokenizer.symbols, False, codes, tokenizer.content)


def _characters(path: str) -> Iterator[str]:
    """Yield a text's bytes in blocks, decoded as Latin-1: each byte is one character."""
    with opened(path) as (file, _):
        while block := file.read(BLOCK_BYTES):
            yield block.decode("latin-1")


def _words(path: str) -> Iterator[list[str]]:
    for _, line in text_lines(path, remedy="convert it, or import characters, not words"):
        yield [*line.split(), END_OF_LINE]


def _contents(path: str, words: bool, summary: TextSummary, start: int, stop: int) -> StoreContents:
    batches = _batches(path, words, summary, start, stop)
    return StoreContents(batches, stop - start, vocabulary=summary.vocabulary, tokenizer=summary.tokenizer)


def _batches(path: str, words: bool, summary: TextSummary, start: int, stop: int) -> Generator[Batch]:
    if summary.codes is not None:
        for first in range(start, stop, WORDS_PER_BATCH):
            yield Batch(summary.codes[first : min(first + WORDS_PER_BATCH, stop)], None)
        return
    position = 0
    for codes in _word_codes(path, summary) if words else _character_codes(path, summary):
        selection = codes[max(start - position, 0) : max(stop - position, 0)]
        position += len(codes)
        if len(selection):
            yield Batch(selection, None)


def _character_codes(path: str, summary: TextSummary) -> Iterator[np.ndarray]:
    table = np.full(256, -1, np.int16)
    for code, symbol in enumerate(summary.vocabulary):
        if len(symbol) != 1 or ord(symbol) > 255:
            raise UserError(f"the vocabulary has {symbol!r}, which is not a single byte; use --words for words")
        table[ord(symbol)] = code
    offset = 0
    for block in _characters(path):
        codes = table[np.frombuffer(block.encode("latin-1"), np.uint8)]
        unseen = np.flatnonzero(codes < 0)
        if len(unseen) and not summary.skip_unseen:
            symbol = block[unseen[0]]
            raise UserError(
                f"{path}: byte {offset + unseen[0]} is the character {symbol!r}, which the vocabulary lacks; import "
                "training and test text at once (--held-out), or leave such characters out (--skip-unseen)"
            )
        offset += len(block)
        yield codes[codes >= 0].astype(np.uint8)


def _word_codes(path: str, summary: TextSummary) -> Iterator[np.ndarray]:
    codes = {symbol: code for code, symbol in enumerate(summary.vocabulary)}
    unknown = codes.get(UNKNOWN)
    batch: list[int] = []
    for number, line in enumerate(_words(path), 1):
        for word in line:
            code = codes.get(word, unknown)
            if code is not None:
                batch.append(code)
            elif not summary.skip_unseen:
                raise UserError(
                    f"{path}:{number}: the word {word!r} is not in the vocabulary, which has no {UNKNOWN} either; "
                    "leave such words out with --skip-unseen"
                )
        if len(batch) >= WORDS_PER_BATCH:
            yield np.array(batch, np.int32)
            batch = []
    yield np.array(batch, np.int32)


def _unit(words: bool) -> str:
    return "word" if words else "character"
