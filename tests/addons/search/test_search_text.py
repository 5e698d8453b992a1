"""The space of a search as text, on the command line and in files."""

import contextlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsinga import SearchRange, SearchResult, UserError
from dsinga.addons.search.result import read_outcome, write_outcome, write_table
from dsinga.addons.search.space import make_settings, parse_space, parse_values, read_space
from dsinga.monitor import History
from tests.support.refusals import check_refusal, refusal

# Clusters that other tests have left running draw random numbers while hypothesis makes examples.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2.5, x", [1, 2.5, "x"]),
        ("kAdam", ["kAdam"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("'a,b',\"c\"", ["'a,b'", '"c"']),
        ("{ type: kFixed base_lr: 1 }, { type: kLinear }", ["{ type: kFixed base_lr: 1 }", "{ type: kLinear }"]),
        ("1e-3", [0.001]),
    ],
)
def test_values_are_between_commas(text: str, values: list[Any]) -> None:
    assert parse_values(text) == values


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=5))
def test_numbers_are_read_as_they_are_written(numbers: list[float]) -> None:
    assert parse_values(",".join(map(repr, numbers))) == numbers


def test_a_single_value_is_an_override() -> None:
    overrides = ["seed=1", "neuralnet.layer[data,kTrain].store_conf.batchsize=5,10", "updater.momentum=0.5,0.9"]
    single, space = parse_space(overrides)
    assert single == ["seed=1"]
    assert space == {"neuralnet.layer[data,kTrain].store_conf.batchsize": [5, 10], "updater.momentum": [0.5, 0.9]}


def test_distributions_have_scipys_names() -> None:
    random = np.random.default_rng(0)
    for text, distribution in (
        ("loguniform(1e-4, 1)", scipy.stats.loguniform(1e-4, 1)),
        ("uniform(-1,3)", scipy.stats.uniform(-1, 4)),
    ):
        drawn = parse_values(text)
        assert isinstance(drawn, SearchRange)
        assert scipy.stats.kstest([drawn.rvs(random) for _ in range(500)], distribution.cdf).pvalue > 0.01
    assert parse_values("randint(2, 5)") == SearchRange(2, 4, step=1)


def test_a_file_has_a_space_or_settings(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("updater.momentum: [0.5, 0.9]\nseed: 3\nrate: loguniform(0.1, 1)\n")
    space = read_space(tmp_path / "a.yaml")
    assert isinstance(space, dict)
    assert (space["updater.momentum"], space["seed"]) == ([0.5, 0.9], 3)
    assert all(0.1 < setting["rate"] < 1 for setting in make_settings(space, 5))
    (tmp_path / "b.json").write_text(json.dumps([{"a": [1, 2]}, {"a": "x"}]))
    assert make_settings(read_space(tmp_path / "b.json")) == [{"a": 1}, {"a": 2}, {"a": "x"}]
    (tmp_path / "c.csv").write_text("a,b\n1,x\n2.5,y\n")
    assert make_settings(read_space(tmp_path / "c.csv")) == [{"a": 1, "b": "x"}, {"a": 2.5, "b": "y"}]


@pytest.mark.parametrize("text", ["just text", "- 1\n- 2\n", "", "a: [1"])
def test_a_file_without_settings_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match="bad.yaml"):
        read_space(tmp_path / "bad.yaml")


def test_a_line_of_a_table_has_as_many_values_as_the_first(tmp_path: Path) -> None:
    for line in ("1", "1,2,3"):
        (tmp_path / "bad.csv").write_text(f"a,b\n1,2\n{line}\n")
        with pytest.raises(UserError, match=r"bad.csv:3: a line has as many values as the first line, 2"):
            read_space(tmp_path / "bad.csv")


def test_aliases_of_yaml_have_an_end(tmp_path: Path) -> None:
    names = "abcdefghi"
    nine = "".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(names))
    merged = "".join(f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n" for before, name in pairwise(names))
    (tmp_path / "itself.yaml").write_text("seed: &a [1, *a]\n")
    (tmp_path / "nine.yaml").write_text("a: &a [1, 2]\n" + nine)
    (tmp_path / "merged.yaml").write_text("a: &a {x: 1}\n" + merged)
    messages = {
        "itself": "'seed' has lists nested",
        "nine": "more than 250,000 values",
    }
    for name, message in messages.items():
        with pytest.raises(UserError, match=message):
            make_settings(read_space(tmp_path / f"{name}.yaml"))
    # From 6.0.4 on, PyYAML keeps each merged key once, and there are not too many.
    keeps_keys_once = tuple(map(int, yaml.__version__.split(".")[:3])) >= (6, 0, 4)
    refused = pytest.raises(UserError, match="too many merged values")
    with contextlib.nullcontext() if keeps_keys_once else refused:
        assert len(make_settings(read_space(tmp_path / "merged.yaml"))) == 1


def test_no_secret_is_in_the_files_and_the_table_of_a_search(tmp_path: Path) -> None:
    setting = {"path": "https://me:a-secret@host/x.zarr", "rate": 0.1}
    row = {"number": 0, **setting, "state": "finished", "score": 1.0, "steps": 5, "seconds": 2.0, "remark": ""}
    result = SearchResult("val/loss", higher=False)
    result.add(row, setting, History())
    write_outcome(tmp_path / "0", setting, row, "val/loss")
    write_table(tmp_path, result)
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    texts += [repr(result), result._repr_html_()]
    assert all("https://***@host/x.zarr" in text and "a-secret" not in text for text in texts)
    assert result.best_setting == setting
    found = read_outcome(tmp_path / "0", setting, "val/loss")
    assert found[0][0]["score"] == 1.0
    with pytest.raises(UserError, match="is of the setting"):
        read_outcome(tmp_path / "0", {**setting, "rate": 0.2}, "val/loss")


MISTAKES = [
    refusal(lambda: parse_values("uniform(3,1)"), "uniform(3, 1) must rise", "in uniform(1, 10"),
    refusal(lambda: parse_values("loguniform(0,1)"), "loguniform(0, 1) must rise", "from above 0"),
    refusal(lambda: parse_values("randint(a,b)"), "randint(a, b) must have", "two numbers"),
    refusal(lambda: parse_values("unifrom(0,1)"), "'unifrom(0,1)'", "did you mean 'uniform'"),
    refusal(lambda: parse_values("uniform(1)"), "'uniform(1)'", "give one as"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
