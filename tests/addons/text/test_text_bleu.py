"""BLEU: the examples of Papineni et al. (2002), counts that add up, and sacrebleu."""

import random

import pytest

from dsinga.training import BleuCounts, bleu, bleu_counts

# Examples 1 and 2 of the paper, in lower case.
REFERENCES = (
    "it is a guide to action that ensures that the military will forever heed party commands",
    "it is the guiding principle which guarantees the military forces always being under the command of the party",
    "it is the practical guide for the army always to heed the directions of the party",
)
FIRST = "it is a guide to action which ensures that the military always obeys the commands of the party"
SECOND = "it is to insure the troops forever hearing the activity guidebook that party direct"


def test_the_precisions_of_the_first_example_of_the_paper():
    first, second = bleu_counts(FIRST, REFERENCES), bleu_counts(SECOND, REFERENCES)
    assert (first.matches[0], first.ngrams[0]) == (17, 18)
    assert (second.matches[0], second.ngrams[0]) == (8, 14)
    assert (first.matches[1], first.ngrams[1]) == (10, 17)
    assert (second.matches[1], second.ngrams[1]) == (1, 13)


def test_a_word_counts_as_often_as_in_one_reference():
    counts = bleu_counts("the the the the the the the", ("the cat is on the mat", "there is a cat on the mat"))
    assert (counts.matches[0], counts.ngrams[0]) == (2, 7)
    assert counts.bleu == 0, "without smoothing, no pair of words in common gives 0"


def test_the_length_is_that_of_the_closest_reference():
    counts = bleu_counts("a b c", ("a b", "a b c d", "a b c d e"))
    assert counts.reference_length == 2, "of two that are equally close, the shorter"
    assert bleu_counts("a b c d", "a b c d").bleu == pytest.approx(100)
    short = bleu_counts("a b c d", "a b c d e")
    assert short.brevity_penalty == pytest.approx(2.718281828459045 ** (1 - 5 / 4))
    assert BleuCounts().bleu == 0
    assert bleu_counts("", "a").brevity_penalty == 0


def texts(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices("abcd", k=generator.randint(4, 12))) for _ in range(count)]


def test_counts_of_parts_add_up_to_those_of_all():
    hypotheses, references = texts(20, 1), texts(20, 2)
    each = list(map(bleu_counts, hypotheses, references))
    parts = [sum(each[start::3], BleuCounts()) for start in range(3)]
    assert sum(parts, BleuCounts()) == sum(each, BleuCounts())
    assert sum(parts, BleuCounts()).bleu == bleu(hypotheses, references) > 0


@pytest.mark.parametrize("count", [1, 2])
def test_bleu_is_that_of_sacrebleu(count: int):
    sacrebleu = pytest.importorskip("sacrebleu", reason="compares with sacrebleu")
    hypotheses, references = texts(30, 3), [texts(30, seed) for seed in range(4, 4 + count)]
    expected = sacrebleu.corpus_bleu(hypotheses, references, tokenize="none", smooth_method="none", force=True).score
    several = [list(each) for each in zip(*references, strict=True)]
    assert bleu(hypotheses, several) == pytest.approx(expected, rel=1e-9)
