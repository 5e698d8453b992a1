"""Beam search: brute force over all sequences, greedy search, ends of the search, and clear messages."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from dsinga.addons.text.translation import Hypothesis, beam_search, length_penalty
from dsinga.base.errors import UserError
from tests.support.refusals import refused

START, END, WORDS = 1, 2, 5


def scorer(seed: int):
    """Return scores of a random table of the sequence, the length and the last two codes."""
    table = np.random.default_rng(seed).normal(0, 2, (4, 6, WORDS, WORDS, WORDS)).astype(np.float32)

    def next_scores(sequences: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        before = prefixes[:, -2] if prefixes.shape[1] > 1 else prefixes[:, -1]
        return table[sequences, prefixes.shape[1], before, prefixes[:, -1]]

    return next_scores


def log_probability(next_scores, sequence: int, codes: Sequence[int]) -> float:
    total = 0.0
    for step, code in enumerate([*codes, END]):
        scores = next_scores(np.array([sequence]), np.array([[START, *codes[:step]]]))[0].astype(np.float64)
        total += scores[code] - np.log(np.exp(scores).sum())
    return total


def best_of_all(next_scores, sequence: int, longest: int, alpha: float) -> Hypothesis:
    words = [code for code in range(WORDS) if code not in (START, END)]
    every = itertools.chain.from_iterable(itertools.product(words, repeat=length) for length in range(longest + 1))
    return max(
        (
            Hypothesis(codes, log_probability(next_scores, sequence, codes) / length_penalty(len(codes) + 1, alpha))
            for codes in every
        ),
        key=lambda hypothesis: hypothesis.score,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_with_a_place_for_each_sequence_finds_the_best(seed: int, alpha: float):
    next_scores, limits = scorer(seed), [4, 2, 3]
    found = beam_search(next_scores, limits, START, END, beam=400, alpha=alpha)
    for sequence, (limit, hypothesis) in enumerate(zip(limits, found, strict=True)):
        expected = best_of_all(next_scores, sequence, limit, alpha)
        assert hypothesis.codes == expected.codes
        assert hypothesis.score == pytest.approx(expected.score, rel=1e-5)


def test_sequences_of_a_batch_do_not_influence_each_other():
    next_scores = scorer(3)
    together = beam_search(next_scores, [4, 4, 4], START, END, beam=2)
    for sequence, hypothesis in enumerate(together):
        alone = beam_search(lambda rows, prefixes, k=sequence: next_scores(rows + k, prefixes), [4], START, END, beam=2)
        assert alone == [hypothesis]


def test_the_search_ends_when_no_open_hypothesis_can_win():
    calls = []

    def next_scores(sequences: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        calls.append(prefixes.shape[1])
        return np.array([[0.0, -9, 9, 0, 0]] * len(sequences))

    assert beam_search(next_scores, [50], START, END, beam=5)[0].codes == ()
    assert len(calls) == 1


def test_excluded_codes_do_not_occur():
    free = beam_search(scorer(1), [4] * 4, START, END, beam=3)
    word = next(code for hypothesis in free for code in hypothesis.codes)
    found = beam_search(scorer(1), [4] * 4, START, END, beam=3, excluded=[word])
    assert all(word not in hypothesis.codes for hypothesis in found)


@pytest.mark.parametrize(
    ("options", "message"), [({"beam": 0}, "the beam is 0; give 1"), ({"alpha": -1.0}, "the length penalty is -1.0")]
)
def test_other_settings_are_refused(options: dict, message: str):
    refused(lambda: beam_search(scorer(0), [1], START, END, **options), message)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="scores that are not finite; translate with params of an earlier"):
        beam_search(lambda rows, prefixes: np.full((len(rows), WORDS), np.nan), [3], START, END)
