"""What ``training`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

from typing import Any

import pytest

from dsinga.base.registry import lookup, register
from dsinga.job import AlgConf
from dsinga.training import algorithm
from tests.support.refusals import check_refusal, refusal

MISTAKES = [
    refusal(lambda: (register("algorithm", "Own")("bp"), algorithm(AlgConf(user_alg="Own"))), "'Own'", "be a function"),
    refusal(lambda: lookup("updater", "Xyzzy"), 'register("updater", "Xyzzy") and import', "the module"),
    refusal(lambda: algorithm(AlgConf(alg="kUserAlg", user_alg="kPB")), "'kPB'", "is registered as"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
