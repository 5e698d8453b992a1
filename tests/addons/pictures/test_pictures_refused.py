"""What ``pictures`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

from typing import Any

import pytest

from dsinga import plotting
from dsinga.monitor import History
from tests.support.refusals import check_refusal, refusal

MISTAKES = [
    refusal(lambda: plotting.confusion_matrix({"loss": 1.0}), "these results have no", "compile the model"),
    refusal(lambda: plotting.confusion_matrix([[1, 2]]), "64 of", "shape (1, 2"),
    refusal(lambda: plotting.confusion_matrix([[0.5]]), "not float64 of shape"),
    refusal(lambda: History().plot(), "no metrics to draw", "train for at"),
    refusal(lambda: plotting.returns({}), "there are no results", "to draw"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
