"""Ranges of numbers that a search draws from."""

import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.stats

from dsinga import SearchRange, UserError
from dsinga.addons.search.space import make_settings
from tests.support.refusals import refused_with


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
        ({"low": math.nan, "high": 1}, "low of a SearchRange is a finite number, not nan"),
        ({"low": 0, "high": 10**400}, "high of a SearchRange is a finite number, not 1000"),
        ({"low": False, "high": 1}, "low of a SearchRange is a finite number, not False"),
        ({"low": 0, "high": 1, "step": "x"}, "step of a SearchRange is a finite number, not 'x'"),
        ({"low": 2, "high": 9}, "give step=1 for whole numbers, or 2.0 and 9.0 for all numbers between, in place of"),
        ({"low": 2, "high": 1}, "high must be at least low, unlike that of SearchRange(low=2, high=1"),
        ({"low": 0, "high": 1, "log": True}, "low must be above 0 on a logarithmic scale"),
        ({"low": 1, "high": 2, "log": 5}, "log is 5; give True or False"),
        ({"low": 0, "high": 1, "step": 0}, "step must be above 0 and at most high - low"),
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
