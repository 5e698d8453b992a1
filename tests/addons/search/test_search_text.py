"""The space of a search as text, on the command line and in files."""

import contextlib
import json
import math
import pickle
from collections import Counter
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
from tests.support.refusals import check_refusal, refusal, refused_with

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


# The settings of a search, beside those of scikit-learn.
VALUES = st.one_of(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), st.integers(0, 9))
SPACES = st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=1)


def sklearn_grid(spaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    selection = pytest.importorskip("sklearn.model_selection")
    lists = [{name: v if isinstance(v, list) else [v] for name, v in space.items()} for space in spaces]
    return list(selection.ParameterGrid(lists))


def ordered(settings: list[dict[str, Any]]) -> list[Any]:
    return sorted(sorted(setting.items()) for setting in settings)


@given(st.lists(SPACES, min_size=1, max_size=3))
def test_all_combinations_are_those_of_sklearn(spaces: list[dict[str, Any]]) -> None:
    settings = make_settings(spaces)
    assert ordered(settings) == ordered(sklearn_grid(spaces))
    assert [list(setting) for setting in settings[:1]] == [list(spaces[0])], "in the order of the names"


def test_the_last_name_changes_fastest() -> None:
    assert make_settings({"b": [1, 2], "a": np.array([0.5, 0.25]), "c": "x"}) == [
        {"b": 1, "a": 0.5, "c": "x"},
        {"b": 1, "a": 0.25, "c": "x"},
        {"b": 2, "a": 0.5, "c": "x"},
        {"b": 2, "a": 0.25, "c": "x"},
    ]


def test_a_list_of_settings_is_taken_as_it_is() -> None:
    settings = [{"a": 1, "b": "x"}, {"a": 2}]
    assert make_settings(settings) == settings


@given(st.lists(SPACES, min_size=1, max_size=3), st.integers(1, 30), st.integers(0, 5))
def test_samples_of_lists_are_different_combinations(spaces, samples: int, seed: int) -> None:
    grid = ordered(make_settings(spaces))
    drawn = make_settings(spaces, samples, seed)
    assert len(drawn) == min(samples, len(grid))
    left = list(grid)
    for setting in ordered(drawn):
        left.remove(setting)
    assert drawn == make_settings(spaces, samples, seed)


def test_distributions_are_those_of_scipy_or_functions() -> None:
    space = {
        "rate": scipy.stats.loguniform(1e-4, 1e-1), "units": lambda random: int(random.integers(8, 64)),
        "kind": ["x", "y"], "depth": scipy.stats.randint(1, 4),
    }  # fmt: skip
    settings = make_settings(space, 400, seed=1)
    assert settings == make_settings(space, 400, seed=1)
    assert settings != make_settings(space, 400, seed=2)
    rates = [setting["rate"] for setting in settings]
    assert scipy.stats.kstest(rates, scipy.stats.loguniform(1e-4, 1e-1).cdf).pvalue > 0.01
    assert {setting["kind"] for setting in settings} == {"x", "y"}
    assert {setting["depth"] for setting in settings} == {1, 2, 3}
    assert all(type(value) in (int, float, str) for setting in settings for value in setting.values())


def test_a_space_of_astronomic_size_is_sampled_at_once() -> None:
    for names in (6, 60):
        space = {f"x{number}": list(range(1000)) for number in range(names)}
        assert len({tuple(setting.values()) for setting in make_settings(space, 50)}) == 50


def _nested(levels: int) -> list[Any]:
    """Return nine times the same list of nine times the same list, and so on."""
    values: list[Any] = [*range(9)]
    for _ in range(levels):
        values = [values] * 9
    return values


def _with_itself() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


@pytest.mark.parametrize(
    ("space", "samples", "message"),
    [
        ({"a": []}, None, "'a' has no values to try"),
        ({"a": {1, 2}}, None, "'a' has a set; give a list of values"),
        ({"a": [SearchRange(0.1, 1)]}, 2, "'a' has a SearchRange in a list; give it in place of the list"),
        ({"a": SearchRange}, 2, "'a' has the class SearchRange; give one made by it, as SearchRange"),
        ({"a": scipy.stats.uniform()}, None, "'a' has a distribution; say how many settings are drawn"),
        ({"a": [1]}, 0, "at least 1 sample, not 0"),
        ({1: [1]}, None, "names of what a search tries are strings, not 1"),
        ([], None, "at least one setting"),
        ({}, None, "values to try; name a field of the job with some, as in {'seed': [0, 1]}"),
        (["a"], None, "a dict of lists, or a list of dicts, not 'a'"),
        ([_nested(9)], None, "a dict of lists, or a list of dicts, not [[["),
        ({"a": _with_itself()}, None, "'a' has lists nested more than 100 deep, or one in itself; give plain values"),
        ({"a": _nested(9)}, None, "'a' has more than 250,000 values in lists of lists; give fewer"),
        ({f"x{number}": range(9) for number in range(9)}, None, "not 387,420,489; draw some of them with samples=100"),
        ({"a": range(9)}, 10**9, "at most 100,000 settings, not 1,000,000,000; draw fewer"),
    ],
)
def test_a_space_without_settings_is_refused(space: Any, samples: int | None, message: str) -> None:
    refused_with(lambda: make_settings(space, samples), message)


# Ranges of numbers that a search draws from.
@pytest.mark.parametrize(
    ("range_", "distribution"),
    [
        (SearchRange(-1, 3.0), scipy.stats.uniform(-1, 4)),
        (SearchRange(1e-4, 10, log=True), scipy.stats.loguniform(1e-4, 10)),
    ],
)
def test_numbers_are_distributed_as_those_of_scipy(range_: SearchRange, distribution: Any) -> None:
    values = [setting["x"] for setting in make_settings({"x": range_}, 500)]
    assert scipy.stats.kstest(values, distribution.cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("range_", "values"),
    [
        (SearchRange(2, 4, step=1), [2, 3, 4]),
        (SearchRange(16, 70, step=16), [16, 32, 48, 64]),
        (SearchRange(0, 0.3, step=0.1), [0.0, 0.1, 0.2, 0.3]),
        (SearchRange(5.0, 5.0), [5.0]),
    ],
)
def test_steps_are_drawn_equally_often(range_: SearchRange, values: list[float]) -> None:
    random = np.random.default_rng(0)
    counts = Counter(range_.rvs(random) for _ in range(1000))
    assert sorted(counts) == values
    assert all(type(value) is type(values[0]) for value in counts)
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 0.01 if len(values) > 1 else True


def test_whole_numbers_of_a_logarithmic_scale_have_its_shares() -> None:
    random = np.random.default_rng(0)
    counts = Counter(SearchRange(1, 8, log=True, step=1).rvs(random) for _ in range(4000))
    shares = [math.log((n + 0.5) / (n - 0.5)) / math.log(8.5 / 0.5) for n in range(1, 9)]
    assert scipy.stats.chisquare([counts[n] for n in range(1, 9)], [4000 * share for share in shares]).pvalue > 0.01


def test_a_range_is_sent_and_shown() -> None:
    range_ = SearchRange(1e-4, 0.1, log=True)
    assert pickle.loads(pickle.dumps(range_)) == range_
    assert repr(range_) == "SearchRange(low=0.0001, high=0.1, log=True, step=None)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": "1", "high": 2}, "low of a SearchRange is a finite number, not '1'"),
        ({"low": 0, "high": math.inf}, "high of a SearchRange is a finite number, not inf"),
        ({"low": 0, "high": 10**400}, "high of a SearchRange is a finite number, not 1000"),
        ({"low": 0, "high": 1, "step": "x"}, "step of a SearchRange is a finite number, not 'x'"),
        ({"low": 2, "high": 9}, "give step=1 for whole numbers, or 2.0 and 9.0 for all numbers between, in place of"),
        ({"low": 2, "high": 1}, "high must be at least low, unlike that of SearchRange(low=2, high=1"),
        ({"low": 0, "high": 1, "log": True}, "low must be above 0 on a logarithmic scale"),
        ({"low": 1, "high": 2, "log": 5}, "log is 5; give True or False"),
        ({"low": 0.0, "high": 1.0, "step": 5}, "step must be above 0 and at most high - low"),
        ({"low": 0, "high": 10**30, "step": 1}, "step must be above 0 and at most high - low"),
        ({"low": 1}, "SearchRange: missing a required argument: 'high'; it is called as SearchRange(low, high, *"),
        ({"low": 1, "high": 9, "steps": 2}, "SearchRange has no argument 'steps'; did you mean 'step'?"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "on a logarithmic scale low is whole and step is 1"),
        ({"low": 0.5, "high": 9, "log": True, "step": 1}, "on a logarithmic scale low is whole and step is 1"),
    ],
)
def test_what_is_no_range_is_refused(arguments: dict[str, Any], message: str) -> None:
    refused_with(lambda: SearchRange(**arguments), message)
    with pytest.raises(UserError, match=r"too many positional arguments; it is called as SearchRange\(low, high, \*, "):
        SearchRange(16, 128, 16)  # type: ignore[misc]  # what users who know range() write
