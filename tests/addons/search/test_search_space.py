"""The settings of a search, beside those of scikit-learn."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dsinga.addons.search.ranges import SearchRange
from dsinga.addons.search.space import make_settings
from tests.support.refusals import refused_with

# Clusters that other tests have left running draw random numbers while hypothesis makes examples.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

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
        "rate": scipy.stats.loguniform(1e-4, 1e-1),
        "units": lambda random: int(random.integers(8, 64)),
        "kind": ["x", "y"],
        "depth": scipy.stats.randint(1, 4),
    }
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
        ({"a": iter([1])}, None, "'a' has a list_iterator; give a list of values"),
        ({"a": [SearchRange(0.1, 1)]}, 2, "'a' has a SearchRange in a list; give it in place of the list"),
        ({"a": SearchRange}, 2, "'a' has the class SearchRange; give one made by it, as SearchRange"),
        ({"a": scipy.stats.uniform()}, None, "'a' has a distribution; say how many settings are drawn"),
        ({"a": [1]}, 0, "at least 1 sample, not 0"),
        ({1: [1]}, None, "names of what a search tries are strings, not 1"),
        ([], None, "at least one setting"),
        ({}, None, "values to try; name a field of the job with some, as in {'seed': [0, 1]}"),
        ([{}], None, "values to try"),
        (["a"], None, "a dict of lists, or a list of dicts, not 'a'"),
        ([_nested(9)], None, "a dict of lists, or a list of dicts, not [[["),
        ({"a": _with_itself()}, None, "'a' has lists nested more than 100 deep, or one in itself; give plain values"),
        ({"a": _nested(9)}, None, "'a' has more than 250,000 values in lists of lists; give fewer"),
        ({f"x{number}": range(9) for number in range(9)}, None, "at most 100,000 .*not 387,420,489; .* samples=100"),
        ({"a": range(9)}, 10**9, "at most 100,000 settings, not 1,000,000,000; draw fewer"),
    ],
)
def test_a_space_without_settings_is_refused(space: Any, samples: int | None, message: str) -> None:
    refused_with(lambda: make_settings(space, samples), message)
