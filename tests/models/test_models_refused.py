"""What ``models`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

from typing import Any

import pytest

from dsinga import models
from tests.support.refusals import check_refusal, refusal

MISTAKES = [
    refusal(lambda: models.unet((1, 12, 16), depth=3), "3 times", "points cannot be"),
    refusal(lambda: models.unet((16, 16)), "takes fields of the", "not (16, 16"),
    refusal(lambda: models.unet((1, 8, 8), normalisation="layer"), 'normalisation is "batch", "group"', 'or "none"'),
    refusal(lambda: models.unet((1, 8, 8), padding="circular"), "'circular'", "these are zero"),
    refusal(lambda: models.field_resnet((8, 8)), "takes fields of the shape"),
    refusal(lambda: models.tabm(0), "0 numbers", "give at least"),
    refusal(lambda: models.realmlp(0), "0 numbers", "give at least"),
    refusal(lambda: models.tabm(2, 0, (-1,)), "2 numbers", "give at least"),
    refusal(lambda: models.realmlp(2, 0, (-1,)), "2 numbers", "give at least"),
    refusal(lambda: models.tabm(2, 0, (), 1, "regression"), "'regression'", 'or "numbers", not'),
    refusal(lambda: models.realmlp(2, 0, (), 1, "regression"), "'regression'", 'or "numbers", not'),
    refusal(lambda: models.recommender(1, 1, 1, similarity="dot"), "'dot'", "give one of"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
