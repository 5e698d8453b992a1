"""BLEU, a measure of translations: the share of sequences of 1 to 4 words that occur in the reference translations.

Papineni, Roukos, Ward and Zhu, BLEU: a Method for Automatic Evaluation of Machine Translation (2002).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dsinga.base.errors import UserError

LONGEST = 4
References = str | Sequence[str]


class BleuCounts(NamedTuple):
    """The counts behind the BLEU of any number of sentences; ``+`` adds the counts of more sentences.

    ``matches[n - 1]`` of the ``ngrams[n - 1]`` sequences of n words are in a reference, each at most as often as there.
    ``length`` counts the translations' words, ``reference_length`` the words of the references closest in length.
    """

    matches: tuple[int, ...] = (0,) * LONGEST
    ngrams: tuple[int, ...] = (0,) * LONGEST
    length: int = 0
    reference_length: int = 0

    def __add__(self, other: BleuCounts) -> BleuCounts:  # type: ignore[override]  # not the concatenation of tuples
        return BleuCounts(
            tuple(map(sum, zip(self.matches, other.matches, strict=True))),
            tuple(map(sum, zip(self.ngrams, other.ngrams, strict=True))),
            self.length + other.length,
            self.reference_length + other.reference_length,
        )

    @property
    def brevity_penalty(self) -> float:
        """The factor exp(1 - r / c) for translations of c words, shorter than references of r words; else 1."""
        if self.length >= self.reference_length:
            return 1.0
        return math.exp(1 - self.reference_length / self.length) if self.length else 0.0

    @property
    def bleu(self) -> float:
        """BLEU, the brevity penalty times the geometric mean of the four precisions, in [0, 100]; 0 if one is 0."""
        if not all(self.matches):
            return 0.0
        logs = [math.log(match / count) for match, count in zip(self.matches, self.ngrams, strict=True)]
        return 100 * self.brevity_penalty * math.exp(sum(logs) / LONGEST)


def bleu_counts(hypothesis: str, references: References) -> BleuCounts:
    """Count the matches of a translation with its reference (or list of references), words between blanks."""
    words = hypothesis.split()
    texts = [text.split() for text in ([references] if isinstance(references, str) else references)]
    if not texts:
        raise UserError(f"the translation {hypothesis!r} has an empty list of references; give at least one")
    matches, counts = [], []
    for n in range(1, LONGEST + 1):
        ngrams, most = _ngrams(words, n), Counter[tuple[str, ...]]()
        for reference in texts:
            most |= _ngrams(reference, n)
        matches.append((ngrams & most).total())
        counts.append(ngrams.total())
    closest = min(map(len, texts), key=lambda length: (abs(length - len(words)), length))
    return BleuCounts(tuple(matches), tuple(counts), len(words), closest)


def bleu(hypotheses: Sequence[str], references: Sequence[References]) -> float:
    """Compute the BLEU of translations and their references, in [0, 100], without smoothing.

    Sentences are texts of words separated by blanks; each has a reference, or a list of references. Counts are added
    over all sentences first. Raises UserError if the numbers of sentences differ, or are 0.
    """
    if isinstance(hypotheses, str):
        raise UserError("translations must be a list of texts, not one text; put it into a list")
    if not len(hypotheses):
        raise UserError("there are no translations to measure; give at least one, with its reference")
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations have {len(references)} references; give one for each sentence")
    return sum(map(bleu_counts, hypotheses, references), BleuCounts()).bleu


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))
