"""TextVectorization: the layer that turns texts into codes of words; its vocabulary is saved with the model."""

from __future__ import annotations

import functools
import os
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsinga.addons.text.vocabulary import SymbolEncoder, read_vocabulary
from dsinga.base.arguments import check_whole, value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.nn.model.given_data import padded, texts_of
from dsinga.nn.words.keras_arguments import checked_class
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerBuilder, Symbol, flatten
from dsinga.nn.writing.writer import LayerWriter


@register("word", "TextVectorization")
@checked_class
class TextVectorization(LayerBuilder):
    """Layer that turns texts into codes (n, T) of words: 0 after the end of a text, 1 for unknown words.

    ``adapt`` finds the vocabulary, with more frequent words first. In a model it follows ``nn.Input``, and ``fit``,
    ``evaluate`` and ``predict`` accept texts; called on texts it returns their codes. The job, checkpoints and saved
    models include the vocabulary.

    Args:
        max_tokens: the largest size of the vocabulary, including the codes 0 and 1; no limit by default.
        standardize: "lower_and_strip_punctuation", "lower", "strip_punctuation", or None.
        split: "whitespace", "character", or None for a text that is one word.
        output_mode: "int", codes.
        output_sequence_length: T; texts are cut or padded. Defaults to the longest text's length.
        vocabulary: the words, instead of ``adapt``: a list or the path of a file with one a line.
        name: of the layer.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | None = "lower_and_strip_punctuation",
        split: str | None = "whitespace",
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        vocabulary: Sequence[str] | str | os.PathLike[str] | None = None,
        name: str | None = None,
    ):
        if output_mode != "int":
            raise UserError(f'TextVectorization: output_mode is "int", codes, not {output_mode!r}; nn.OneHot counts on')
        for what, number in (("max_tokens", max_tokens), ("output_sequence_length", output_sequence_length)):
            if number is not None:
                check_whole(f"{what} of TextVectorization", number, 1)
        settings: dict[str, Any] = {"max_tokens": max_tokens, "standardize": standardize, "split": split, "name": name}
        settings["output_sequence_length"] = output_sequence_length
        super().__init__("TextVectorization", self._write, settings, functools.partial(TextVectorization, **settings))
        self._most = None if max_tokens is None else max(max_tokens - 2, 0)
        self.encoder = TextEncoder((), standardize or "", split or "", output_sequence_length)
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    def adapt(self, data: Any) -> None:
        """Build the vocabulary from the words of texts."""
        self._set(frequent_words(self.encoder, self._texts(data), self._most))

    def set_vocabulary(self, vocabulary: Sequence[str] | str | os.PathLike[str]) -> None:
        """Set the vocabulary: a list, or the path of a file with a word a line; "" and "[UNK]" may be first."""
        is_path = isinstance(vocabulary, (str, os.PathLike))
        words = list(read_vocabulary(vocabulary, words=True) if is_path else vocabulary)  # type: ignore[arg-type]
        for first in (PADDING, UNKNOWN):
            words = words[1:] if words[:1] == [first] else words
        if self._most is not None and len(words) > self._most:
            raise UserError(f"the vocabulary has {len(words)} words, and max_tokens allows {self._most}")
        self._set(words)

    def _set(self, words: Sequence[str]) -> None:
        known = self.encoder
        self.encoder = TextEncoder(words, known.standardize, known.split, known.steps)
        self.remake = functools.partial(TextVectorization, **self.settings, vocabulary=[*words])

    def get_vocabulary(self) -> list[str]:
        """Return the words of the codes 0, 1, ...: "", "[UNK]", and the vocabulary's."""
        return [PADDING, UNKNOWN, *self.encoder.words]

    def vocabulary_size(self) -> int:
        """Return the number of codes."""
        return len(self.get_vocabulary())

    def __call__(self, *sources: Any, **arguments: Any) -> Any:
        """Return the symbolic codes of an input, or the codes (n, T) int64 of texts."""
        if any(isinstance(source, Symbol) for source in flatten(sources)):
            return super().__call__(*sources, **arguments)
        return self._required().encode(self._texts(*sources))

    def _texts(self, data: Any) -> list[str]:
        texts = texts_of([data] if isinstance(data, str) else data)
        if texts is None and not hasattr(data, "shape") and hasattr(data, "__iter__"):  # batches
            parts = [texts_of(np.asarray(batch)) for batch in data]
            texts = None if None in parts else [text for part in parts for text in part or ()]
        if texts is None:
            raise UserError(f"TextVectorization takes texts, a list or an array (n,) of strings, not {data!r:.80}")
        return texts

    def _required(self) -> TextEncoder:
        if not self.encoder.words:
            raise UserError("TextVectorization has no vocabulary; call adapt(texts) first, or give vocabulary=")
        return self.encoder

    def _write(self, writer: LayerWriter) -> Feature:
        encoder, source = self._required(), writer.source
        if not source.is_input:
            raise writer.fail(f"takes texts, which an input has: put it directly after nn.Input, not {source.layer!r}")
        words = "\n".join(encoder.words)
        settings = {"standardize": encoder.standardize, "split": encoder.split, "steps": encoder.steps}
        conf = writer.net.inputs.get(source.layer)
        if conf is not None and conf.store_conf is not None:
            conf.store_conf = conf.store_conf.replace(text={"vocabulary": words, **settings})
        shape = writer.net.record_shapes.get(source.layer) if encoder.steps is None else (encoder.steps,)
        return Feature(source.layer, shape)


PADDING, UNKNOWN = "", "[UNK]"  # the words of the codes 0 and 1
STANDARDIZE = ("lower_and_strip_punctuation", "lower", "strip_punctuation", "")
SPLIT = ("whitespace", "character", "")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextEncoder:
    """Turns texts into codes of words.

    ``words`` have the codes 2, 3, ... ``standardize`` and ``split`` are as in :class:`TextVectorization`. Texts are cut
    or padded with 0 to ``steps`` codes, by default the longest text's.
    """

    def __init__(
        self, words: Sequence[str], standardize: str = STANDARDIZE[0], split: str = SPLIT[0], steps: int | None = None
    ):
        for name, value, known in (("standardize", standardize, STANDARDIZE), ("split", split, SPLIT)):
            if value not in known:
                raise UserError(f"{name} is {value_text(value)}; give {', '.join(map(repr, known))}")
        self.words, self.standardize, self.split, self.steps = tuple(words), standardize, split, steps
        unique = {PADDING, UNKNOWN}
        for word in self.words:
            if word in unique or "\n" in word:
                raise UserError(f"the vocabulary has {word!r}, which is there before, or is no word; leave it out")
            unique.add(word)
        self._encoder = SymbolEncoder([PADDING, UNKNOWN, *self.words], UNKNOWN)

    def tokens(self, text: str) -> list[str]:
        """Split a text into words, after its standardisation."""
        text = text.lower() if "lower" in self.standardize else text
        text = text.translate(_WITHOUT_PUNCTUATION) if "punctuation" in self.standardize else text
        if not self.split:
            return [text]
        return list(text) if self.split == "character" else text.split()

    def encode(self, texts: Iterable[str]) -> np.ndarray:
        """Encode texts as codes (n, steps) int64, 0 after the end and 1 for unknown words."""
        codes = [self._encoder.encode_symbols(self.tokens(text)) for text in texts]
        return padded(codes, 0, self.steps)


def frequent_words(encoder: TextEncoder, texts: Iterable[str], most: int | None = None) -> list[str]:
    """Return texts' words, most frequent first; equally frequent ones in reverse alphabetical order."""
    counts = Counter(token for text in texts for token in encoder.tokens(text))
    words = sorted(counts, key=lambda word: (counts[word], word), reverse=True)
    return [word for word in words if word not in (PADDING, UNKNOWN)][:most]
