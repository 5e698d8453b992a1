"""The median stopping rule, beside its definition by numpy, and the extension that applies it in simulated runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.extensions import MedianRule, MedianStopping, MetricValues
from dsinga.testing import SimulatedLoop

CURVES = st.lists(st.lists(st.floats(0.1, 2.0), min_size=8, max_size=8), min_size=1, max_size=9)


def simulate(losses: Sequence[float], extension: MetricValues) -> SimulatedLoop:
    """Run as many validations, one after every 10 steps, as there are losses."""

    def metrics_of(phase: str, step: int) -> dict[str, float]:
        loss = losses[min(step // 10, len(losses)) - 1]
        return {"loss": loss, "accuracy": 1 - loss}

    return SimulatedLoop([extension], metrics_of, train_steps=10 * len(losses)).run()


@given(CURVES, st.integers(1, 9), st.integers(1, 4))
def test_the_median_is_that_of_the_running_means(curves: list[list[float]], place: int, least: int) -> None:
    rule = MedianRule(least)
    for curve in curves:
        rule.add([(10 * (number + 1), value) for number, value in enumerate(curve)])
    median = rule.median(10 * place + 3)
    if len(curves) < least:
        assert median is None
    else:
        expected = np.median(np.array(curves)[:, :place].mean(axis=1))
        assert median == (pytest.approx(expected), len(curves))


@given(CURVES)
def test_the_runs_of_a_search_end_where_their_best_value_is_worse_than_the_median(curves: list[list[float]]) -> None:
    """By the definition in the paper, run after run."""
    rule = MedianRule(3)
    complete: list[list[float]] = []
    for curve in curves:
        end = 8
        for count in range(1, 8):
            means = [statistics.mean(other[:count]) for other in complete]
            if len(means) >= 3 and min(curve[:count]) > statistics.median(means) * (1 + 1e-12):
                end = count
                break
        loop = simulate(curve, MedianStopping(rule, "val/loss"))
        assert loop.step == 10 * end
        assert ("worse than the median" in loop.stopped) == (end < 8)
        if end == 8:
            complete.append(curve)


def test_higher_values_are_better_for_an_accuracy() -> None:
    rule = MedianRule(1)
    simulate([0.5, 0.4, 0.3], MedianStopping(rule, "val/accuracy"))
    assert simulate([0.6, 0.5, 0.4], MedianStopping(rule, "val/accuracy")).step == 10
    assert simulate([0.5, 0.4, 0.3], MedianStopping(rule, "val/accuracy")).step == 30


def test_a_run_whose_values_are_no_numbers_is_ended_and_compared_with_nothing() -> None:
    rule = MedianRule(1)
    simulate([math.nan, 1.0], MedianStopping(rule, "val/loss"))
    assert rule.median(100) is None
    rule.add([(10, 1.0), (20, 0.5)])
    loop = simulate([math.nan, 0.1, 0.1], MedianStopping(rule, "val/loss"))
    assert (loop.step, loop.stopped) == (
        10, "val/loss was not a number at best, worse than the median 1 of 1 complete runs"
    )  # fmt: skip


def test_runs_that_report_at_other_steps_are_compared_up_to_each_step() -> None:
    rule = MedianRule(2)
    rule.add([(3, 1.0), (9, 0.5)])
    rule.add([(4, 3.0), (8, 1.0), (12, 0.1)])
    assert rule.median(3) is None
    assert rule.median(8) == (1.5, 2)  # of 1.0 and 2.0
    assert rule.median(100) == (pytest.approx((0.75 + 4.1 / 3) / 2), 2)


def test_the_values_of_a_metric_are_kept_with_their_steps() -> None:
    values = MetricValues("val_loss")
    simulate([0.5, 0.4, 0.45], values)
    assert values.values == [(10, 0.5), (20, 0.4), (30, 0.45)]
    assert values.best.value == 0.4


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="mode must be one of auto, min, max, not 'least'"):
        MetricValues("val/loss", "least")
