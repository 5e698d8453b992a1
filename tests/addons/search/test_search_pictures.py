"""Pictures of a search, and the importance of its names."""

import math
import re
import sys
from typing import Any
from xml.etree import ElementTree

import click
import numpy as np
import pytest
from click.testing import CliRunner

from dsinga import SearchRange, SearchResult
from dsinga.addons.pictures.panels import to_bytes
from dsinga.addons.planner.commands import plan
from dsinga.addons.search.commands import find_lr, search
from dsinga.addons.search.importance import importance
from dsinga.addons.search.space import Setting
from dsinga.base.errors import UserError
from dsinga.monitor import History
from tests.support.executed_pages import ROOT
from tests.support.refusals import refused

RANGES = {"job.rate": SearchRange(1e-4, 1, log=True), "units": SearchRange(16, 128, step=16)}


def searched(count: int, higher: bool = False) -> SearchResult:
    """Return the result of a made search: the rate decides, one of eight settings fails, and one is stopped."""
    random, result = np.random.default_rng(0), SearchResult("val/loss", higher)
    result.ranges = RANGES
    for number in range(count):
        setting: Setting = {name: range_.rvs(random) for name, range_ in RANGES.items()}
        setting |= {"kind": ["relu", "<tanh>"][number % 2], "hidden": [(8,), (16, 16)][random.integers(2)]}
        score = abs(math.log10(setting["job.rate"]) + 2) + 0.1 * random.normal()
        state = {6: "stopped", 7: "failed"}.get(number % 8, "finished")
        outcome = {"state": state, "score": None if state == "failed" else -score if higher else score, "steps": 40}
        rows = [{"step": step, "phase": "val", "loss": score + 1 / step} for step in (10, 20, 30, 40)]
        row = {"number": number, **setting, **outcome, "seconds": 1.0, "remark": ""}
        result.add(row, setting, History(rows[:2] if state == "stopped" else rows))
    return result


def drawn(result: SearchResult) -> tuple[ElementTree.Element, list[str]]:
    """Return the picture of a result, and all texts in it."""
    picture = ElementTree.fromstring(result.draw())
    return picture, [element.text or "" for element in picture.iter() if element.tag.endswith("text")]


def test_a_search_is_drawn_with_the_scales_of_its_ranges() -> None:
    picture, texts = drawn(searched(40))
    axes = [name for name in texts if name in ("rate", "units", "kind", "hidden", "val/loss")]
    assert axes[:5] == ["rate", "units", "kind", "hidden", "val/loss"]
    assert [text for text in texts if text in ("0.0001", "0.001", "0.01", "0.1", "1")][:5] == [
        "0.0001", "0.001", "0.01", "0.1", "1",
    ]  # fmt: skip
    assert {"<tanh>", "relu", "(8,)", "(16, 16)", "failed", "stopped", "40 settings"} <= set(texts)
    titles = [element.text or "" for element in picture.iter() if element.tag.endswith("title")]
    assert len([title for title in titles if title.endswith(": failed ")]) == 5
    assert [*RANGES, "kind", "hidden"] == [title for title in titles if title in (*RANGES, "kind", "hidden")]
    last = [title for title in titles if " (" in title][-1]
    assert last.startswith(f"{searched(40).best['number']} (job.rate=")  # type: ignore[index]


def test_a_picture_may_be_written_as_png() -> None:
    result = searched(8)
    assert to_bytes(result.figure(), ".PNG").startswith(b"\x89PNG")
    assert to_bytes(result.figure(), ".svg") == to_bytes(result.figure(), "") == result.draw().encode()


def test_without_matplotlib_a_notebook_shows_the_table_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched(8)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    refused(lambda: result.draw(), r"'dsinga\[plot\]'", "pip install")
    shown = result._repr_html_()
    assert "drawing needs Matplotlib" in shown
    assert "<table>" in shown


def test_higher_scores_may_be_better() -> None:
    result = searched(24, higher=True)
    _, texts = drawn(result)
    assert f"setting {result.best['number']}" in texts  # type: ignore[index]


def test_of_very_many_settings_some_are_drawn() -> None:
    picture, texts = drawn(searched(1000))
    assert "200 of 1,000 settings" in texts
    assert len(ElementTree.tostring(picture)) < 500_000


@pytest.mark.parametrize("scores", [[], [None], [math.nan, None], [1.0], [1.0, 1.0], [1e-3, 1e9, math.inf]])
def test_any_scores_are_drawn(scores: list[float | None]) -> None:
    result = SearchResult("train/loss", higher=False)
    result.ranges = {"rate": SearchRange(0.5, 2.0, log=True), "flag": SearchRange(0.5, 2.0)}  # of another space
    for number, score in enumerate(scores):
        setting = {"seed": number} if number else {"rate": 0.1, "flag": None}
        row = {"number": number, **setting, "state": "finished" if score else "failed", "score": score, "steps": 1}
        result.add({**row, "seconds": 0.0, "remark": ""}, setting, History())
    drawn(result)


@pytest.mark.parametrize("command", [search, find_lr, plan])
def test_without_matplotlib_a_command_that_draws_does_nothing_else(
    command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    job = str(ROOT / "datasets/digits/job.conf")
    ended = CliRunner().invoke(command, [job, "--picture", "drawn.svg"])
    assert isinstance(ended.exception, UserError)
    assert re.fullmatch(r"drawing needs Matplotlib \(.*\): pip install 'dsinga\[plot\]'", str(ended.exception))
    assert not ended.stdout


def test_a_narrow_logarithmic_range_has_ticks_and_texts_are_no_formulas() -> None:
    result = SearchResult("val/loss", higher=False)
    result.ranges = {"$rate": SearchRange(0.5, 2.0, log=True)}
    for number, text in enumerate(["$x^", r"\\frac$", "$a_$"]):
        setting = {"$rate": 0.5 + number / 2, "kind": text}
        row = {"number": number, **setting, "state": "finished", "score": number / 2, "steps": 1}
        result.add({**row, "seconds": 0.0, "remark": ""}, setting, History())
    _, texts = drawn(result)
    assert {"0.5", "1", "2", "$rate", "$x^", r"\\frac$", "$a_$"} <= set(texts)


def test_importance_is_the_share_of_the_variance_of_ranks() -> None:
    """Beside a formula by hand: of the ranks 0..5 in groups (0, 1, 2) and (3, 4, 5) all but 4 of 17.5 is between."""
    rows: list[dict[str, Any]] = [
        {"score": float(place), "steps": 1, "a": place // 3, "b": place % 2, "c": "x"} for place in range(6)
    ]
    shares = importance(rows, ["c", "b", "a"])
    assert list(shares) == ["a", "c", "b"]
    assert shares["a"] == pytest.approx(1 - (4 / 17.5) * 5 / 4)
    assert shares["b"] == shares["c"] == 0


def test_the_name_that_decides_is_the_most_important_one() -> None:
    shares = searched(64).importance()
    assert max(shares, key=lambda name: shares[name]) == "job.rate"
    assert shares["job.rate"] > 0.3
    assert sum(shares.values()) - shares["job.rate"] < 0.2
