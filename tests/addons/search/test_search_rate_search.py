"""Suggestions and pictures of a search for a learning rate, from given losses."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st

from dsinga.addons.search.learning_rate import SMOOTHING, RateSearch, has_diverged, smooth

RATES = [10 ** (-6 + 0.07 * step) for step in range(100)]  # 1e-6 to about 8.5


def valley(lowest: int) -> RateSearch:
    """Return a search whose loss falls linearly up to a step and then rises ten times as fast."""
    losses = [10 - 0.1 * min(step, lowest) + max(step - lowest, 0) for step in range(100)]
    return RateSearch(RATES, losses)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=50))
def test_smoothing_is_an_exponential_mean_corrected_for_its_start(losses: list[float]) -> None:
    filtered = scipy.signal.lfilter([1 - SMOOTHING], [1, -SMOOTHING], losses)
    expected = filtered / (1 - SMOOTHING ** np.arange(1, len(losses) + 1))
    np.testing.assert_allclose(smooth(losses), expected, atol=1e-9)


@pytest.mark.parametrize("lowest", [20, 50, 80])
def test_the_suggestion_is_a_tenth_of_the_rate_with_the_lowest_loss(lowest: int) -> None:
    search = valley(lowest)
    assert lowest <= search.lowest <= lowest + 5, "smoothing delays it a little"
    assert search.suggestion == pytest.approx(RATES[search.lowest] / 10)
    assert f"a tenth of {RATES[search.lowest]:.3g}, where the loss was lowest" in repr(search)


def test_a_loss_that_only_rises_suggests_nothing() -> None:
    search = RateSearch(RATES, [1 + step for step in range(100)])
    assert search.suggestion is None
    assert "no learning rate from 1e-06 to 8.51 lowered the loss" in repr(search)
    assert "suggestion" not in search.draw()


def test_a_loss_that_falls_to_the_end_says_so() -> None:
    search = RateSearch(RATES, [100 - step for step in range(100)])
    assert search.suggestion == pytest.approx(RATES[-1] / 10)
    assert "still falling, try higher rates" in repr(search)


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([], False),
        ([1.0] * 20, False),
        ([1.0] * 20 + [20] * 3, True),
        ([1.0] * 20 + [1.5] * 20, False),
        ([1.0, math.nan], True),
        ([1.0, math.inf], True),
        ([-5.0] * 20 + [-4.9] * 5, False),
        ([-5.0] * 20 + [100] * 5, True),
    ],
)
def test_a_loss_diverges_when_it_is_four_times_its_lowest_or_not_finite(losses: list[float], diverged: bool) -> None:
    assert has_diverged(losses) == diverged


def test_the_picture_has_powers_of_ten_and_the_suggestion() -> None:
    search = valley(60)
    texts = [
        element.text or "" for element in ElementTree.fromstring(search.draw()).iter() if element.tag.endswith("text")
    ]
    assert {"1e-6", "1e-4", "0.01", "learning rate", f"suggestion {search.suggestion:.2g}"} <= set(texts)
    assert search.draw() in search._repr_html_()


def test_a_loss_that_explodes_does_not_flatten_the_picture() -> None:
    search = RateSearch(RATES, [10 - step / 10 if step < 90 else 1e9 for step in range(100)])
    (axes,) = search.figure().axes
    assert axes.get_ylim()[1] < 30
