"""Arguments of a wrong type, of every ready net and of a search, are errors that name function and argument."""

import inspect
from typing import Any

import pytest

import dsinga
from dsinga import models
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from tests.support.refusals import check_refusal, refusal, refused

WRONG = (None, "5", [3], float("nan"), -1, 2.5, True, {"a": 1}, object())
SEARCH: dict[str, Any] = {"job": "job.conf", "space": {"seed": [0, 1]}}


@pytest.mark.parametrize("name", models.__all__)
def test_ready_nets_take_or_refuse_arguments_of_every_type(name):
    function = getattr(models, name)
    named = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    required = {p.name: 10 for p in named if p.default is p.empty}
    for parameter in named:
        for value in WRONG:
            try:
                function(**{**required, parameter.name: value})
            except UserError:
                pass  # any other error fails the test
            except Exception as error:
                error.add_note(f"{name}({parameter.name}={value!r})")
                raise


@pytest.mark.parametrize(
    ("argument", "value"),
    [("samples", "5"), ("seed", None), ("monitor", 3), ("mode", None), ("only", 3), ("only", ["a"]), ("resume", "yes"),
     ("halving", "3"), ("workspace", 3), ("progress", [3])],
)  # fmt: skip
def test_a_search_names_an_argument_of_a_wrong_type(argument, value):
    refused(lambda: dsinga.search(**SEARCH, **{argument: value}), f"^search: {argument} is .*, not ")


def test_which_values_fit_which_annotations():
    @typed("net.")
    def f(n: int = 1, x: float = 1, shape: tuple[int, int] = (1, 2), names: list[str] | None = None, other: Any = 0):
        return n, x, shape, names

    assert f(2, 3, [4, 5], ["a"], object()) == (2, 3, [4, 5], ["a"])
    for arguments, text in (
        ({"n": True}, "n is a whole number, not True"),
        ({"x": float("nan")}, "x is a number, not nan"),
        ({"shape": (1, 2, 3)}, r"shape is .whole number, whole number., not"),
        ({"names": "ab"}, "names is a list of texts or None, not 'ab'"),
    ):
        with pytest.raises(UserError, match=f"net.f: {text}"):
            f(**arguments)


# What ``models`` refuses: each mistake in a line, with the name and the remedy that its error must have.
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
