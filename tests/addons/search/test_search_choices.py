"""Choices of a space are told by their place: when they are drawn, suggested, drawn as pictures, and resumed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import SearchResult
from dsinga.addons.search.result import read_outcome, write_outcome
from dsinga.addons.search.samplers import SampledSettings
from dsinga.addons.search.setting import Setting, untold
from dsinga.addons.search.space import make_settings
from dsinga.monitor import History
from tests.support.refusals import refused

pandas = pytest.importorskip("pandas")
LONG = np.zeros(3000)
CHOICES: dict[str, Callable[[], list[Any]]] = {
    "equal": lambda: [True, 1, 1.0, "1"],
    "missing": lambda: [math.nan, None, "nan", ""],
    "one text": lambda: [b"a", "b'a'", "b'a' "],
    "functions": lambda: [lambda: 1, lambda: 2],
    "arrays": lambda: [LONG, np.where(np.arange(3000) == 1500, 1.0, LONG), LONG.astype(np.float32)],
    "frames": lambda: [pandas.DataFrame({"a": range(999)}), pandas.DataFrame({"a": [0] * 999})],
    "nested": lambda: [[1, True], [True, 1], {"a": 1}, {"a": 1.0}],
}


def in_turn(values: list[Any]) -> list[Setting]:
    return make_settings({"it": values})


def in_spaces(values: list[Any]) -> list[Setting]:
    return make_settings([{"it": [value]} for value in values])


def drawn(values: list[Any]) -> list[Setting]:
    return make_settings({"it": values, "rate": lambda random: random.random()}, 40)


def suggested(values: list[Any]) -> list[Setting]:
    optuna = pytest.importorskip("optuna")
    sampled = SampledSettings(optuna.samplers.RandomSampler(seed=0), {"it": values}, 40, at_once=40)
    return sampled.first()


@pytest.mark.parametrize("make", [in_turn, in_spaces, drawn, suggested])
@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_each_choice_is_made_and_found_again(
    make: Callable[[list[Any]], list[Setting]], choices: Callable[[], list[Any]], tmp_path: Path
) -> None:
    """A resumed search has other objects with the same contents; what only its place tells is found by that."""
    settings = make(values := choices())
    assert {setting.places["it"] for setting in settings} == set(range(len(values)))
    for setting in settings:
        assert setting["it"] is values[setting.places["it"]]
    row = {"state": "finished", "score": 0.5, "steps": 4, "seconds": 0.1, "remark": ""}
    write_outcome(tmp_path, settings[0], row, "val/loss")
    assert read_outcome(tmp_path, make(choices())[0], "val/loss") == ([row], History())
    swapped = [*values[1:], values[0]]
    if not callable(values[0]):
        refused(lambda: read_outcome(tmp_path, make(swapped)[0], "val/loss"), "is of the setting it=", "go on with")


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
def test_choices_are_shown_apart(choices: Callable[[], list[Any]]) -> None:
    result = SearchResult("val/loss", False)
    for number, setting in enumerate(make_settings({"it": choices(), "seed": list(range(12))})):
        row = {"number": number, **setting, "state": "finished", "score": number // 12 / 2, "steps": 1, "seconds": 0.1}
        result.add({**row, "remark": ""}, setting, History())
    assert result.importance()["it"] > 0.9
    assert len(result.sorted("it")) == len(result)
    assert result.draw().count("<path") > len(result)
    assert "\n" not in repr(result)


def test_what_was_drawn_without_a_text_is_said_before_training() -> None:
    (setting,) = make_settings({"net": lambda random: object()}, samples=1)
    assert untold(setting) == "net"
    assert not untold(make_settings({"net": [object()], "rate": lambda random: 0.1}, samples=1)[0])
    assert make_settings({"frame": (frame := pandas.DataFrame({"a": [1]}))})[0]["frame"] is frame
