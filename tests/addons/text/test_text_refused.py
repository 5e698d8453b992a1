"""What ``text`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

from typing import Any

import pytest

import dsinga
from dsinga import models, nn
from dsinga.addons.text.vocabulary import encode
from dsinga.training import bleu
from tests.support.refusals import check_refusal, refusal

MISTAKES = [
    refusal(lambda: bleu(["a", "b"], ["a"]), "2 translations", "have 1 references"),
    refusal(lambda: bleu([], []), "no translations to measure", "give at least"),
    refusal(lambda: bleu("a b", "a b"), "translations must be a", "not one text"),
    refusal(lambda: bleu(["a"], [[]]), "'a' has an empty", "give at least"),
    refusal(
        lambda: nn.Sequential([nn.Input(4), nn.Dense(3)]).compile("sgd", nn.CRF), "CRF is a function", "call it: nn"
    ),
    refusal(lambda: dsinga.translate(models.mlp(), {}, ["a"]), "the net cannot translate", "two input layers"),
    refusal(lambda: encode("ab y c x y", ("ab", "c")), "2 words", "leave such out"),
    refusal(lambda: encode("ab y c x y", ("a", "b", " ")), "3 characters", "leave such out"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
