"""Triggers fire at the steps that a search through all steps finds, and name them in advance."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.extensions import AtEnd, BestValue, EverySeconds, EverySteps, LoopPosition, OnMetric, Trigger, WhenBest
from dsinga.extensions.triggers import EveryEpoch
from dsinga.job.epochs import Epochs
from tests.support.refusals import refused

LAST = 60
STEPS = st.integers(1, 25)


def now_of_singa(step: int, freq: int, after: int) -> bool:
    """``now`` of SINGA's worker.cc."""
    return freq > 0 and step >= after and (step - after) % freq == 0


def due_steps(trigger: Trigger) -> list[int]:
    """Return the steps of a run, its beginning included, at which a trigger is due."""
    return [step for step in range(LAST + 1) if trigger.due(LoopPosition(step, at_end=step == LAST))]


def visited_steps(trigger: Trigger) -> list[int]:
    """Return the steps at which a loop stops that asks the trigger where to stop next."""
    steps, step = [], 0
    while step < LAST:
        step = min(LAST, trigger.next_step(step) or LAST)
        steps.append(step)
    return steps


@given(st.lists(st.tuples(STEPS, st.integers(0, 70)), min_size=1, max_size=4), st.booleans())
def test_a_loop_stops_wherever_a_trigger_is_due_and_nowhere_else(parts: list[tuple[int, int]], at_end: bool) -> None:
    trigger: Trigger = AtEnd() if at_end else EverySteps(*parts[0])
    for part in parts:
        trigger = trigger | EverySteps(*part)
    expected = {step for step in range(1, LAST + 1) if any(now_of_singa(step, *part) for part in parts)}
    assert visited_steps(trigger) == sorted(expected | {LAST})
    assert {*due_steps(trigger)} - {0} == expected | ({LAST} if at_end else set())
    assert due_steps(EverySteps(parts[0][0])) == [*range(parts[0][0], LAST + 1, parts[0][0])]  # without after


@given(st.integers(1, 30), st.integers(0, 70), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_a_step_that_is_passed_over_counts_at_the_next_moment(freq: int, after: int, strides: list[int]) -> None:
    every, epoch = EverySteps(freq, after), EveryEpoch(Epochs(2 * freq + 1, 2))
    before = 0
    for stride in strides:
        step = before + stride
        passed = range(before + 1, step + 1)
        moment = LoopPosition(step, before=before)
        assert every.due(moment) == any(now_of_singa(at, freq, after) for at in passed)
        assert epoch.due(moment) == any(epoch.due(LoopPosition(at)) for at in passed)
        before = step


@given(freq=STEPS, after=st.integers(0, 70), train_steps=st.integers(1, LAST))
def test_a_trigger_that_can_never_fire_says_so(freq: int, after: int, train_steps: int) -> None:
    fires = any(now_of_singa(step, freq, after) for step in range(train_steps + 1))
    reason = EverySteps(freq, after).never_due(train_steps)
    assert bool(reason) != fires
    assert not (EverySteps(freq, after) | AtEnd()).never_due(train_steps)
    if reason:
        assert f"but train_steps is {train_steps}; give " in reason


def test_the_next_step_of_a_long_run_is_found_at_once() -> None:
    assert EverySteps(7, 10**15).next_step(0) == 10**15


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=50), st.floats(0.5, 10))
def test_every_seconds_fires_at_the_first_round_that_ends_late_enough(rounds: list[float], seconds: float) -> None:
    trigger, now, fired, last = EverySeconds(seconds), 0.0, [], 0.0
    expected = []
    for number, length in enumerate(rounds):
        now += length
        if trigger.due(LoopPosition(number, now)):
            trigger.note_run(LoopPosition(number, now))
            fired.append(number)
        if now - last >= seconds:
            expected.append(number)
            last = now
    assert fired == expected
    assert trigger.by_clock
    assert (trigger | EverySteps(5)).by_clock


@given(st.lists(st.one_of(st.none(), st.floats(-5, 5), st.just(math.nan))), st.booleans(), st.floats(0, 2))
def test_when_best_fires_at_every_improvement(values: list[float | None], higher: bool, min_delta: float) -> None:
    """Going on from a state after every value, as runs do that are resumed."""
    mode = "max" if higher else "min"
    best: float | None = None
    state: dict[str, object] = {}
    for step, value in enumerate(values):
        trigger = WhenBest("val/loss", mode, min_delta)
        trigger.load_state(state)
        moment = LoopPosition(step, metrics={} if value is None else {"val/loss": value, "val/accuracy": 0.5})
        improves = value is not None and not math.isnan(value)
        if improves and best is not None:
            improves = (value - best if higher else best - value) > min_delta
        assert trigger.due(moment) == improves
        if improves:
            trigger.note_run(moment)
            best = value
        state = json.loads(json.dumps(trigger.state_dict()))


def test_a_metric_fires_when_it_is_recorded_and_training_pauses_when_it_may_be() -> None:
    trigger = OnMetric("val/loss")
    trigger.bind({"val": EverySteps(10) | AtEnd(), "train": EverySteps(3)})
    assert trigger.next_step(5) == 10
    assert not trigger.due(LoopPosition(10, metrics={"train/loss": 1.0}))
    assert trigger.due(LoopPosition(10, metrics={"train/loss": 1.0, "val/loss": 2.0}))
    assert [part.monitor for part in (trigger | EverySteps(2)).metrics()] == ["val/loss"]


def test_an_undeclared_metric_must_be_among_the_recorded_ones() -> None:
    trigger = OnMetric("val/acuracy")
    moment = LoopPosition(10, metrics={"val/accuracy": 1.0})
    assert not trigger.due(moment), "a metric without a count is left out of a row"
    trigger.is_declared = False
    refused(lambda: trigger.due(moment), "there is no metric 'val/acuracy' to monitor; did you mean 'val/accuracy'")


def test_parts_of_a_trigger_have_states_of_their_own() -> None:
    trigger = WhenBest("val/loss") | WhenBest("val/accuracy")
    trigger.note_run(LoopPosition(1, metrics={"val/loss": 2.0, "val/accuracy": 0.5}))
    resumed = WhenBest("val/loss") | WhenBest("val/accuracy")
    resumed.load_state(trigger.state_dict())
    assert not resumed.due(LoopPosition(2, metrics={"val/loss": 2.0, "val/accuracy": 0.5}))
    assert resumed.due(LoopPosition(2, metrics={"val/loss": 2.0, "val/accuracy": 0.6}))


@pytest.mark.parametrize(
    ("monitor", "higher"),
    [("val/loss", False), ("val/accuracy", True), ("test/side/loss", False), ("val/f1", True), ("val/entropy", False)],
)
def test_the_name_of_a_metric_says_which_values_are_better(monitor: str, higher: bool) -> None:
    assert BestValue(monitor).higher == higher
    assert BestValue(monitor, "min").higher is False
    assert BestValue(monitor, "max").higher is True


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BestValue("val/oddness").higher, "say whether lower or higher values of 'val/oddness' are better"),
        (lambda: BestValue("val/loss", "mix"), "mode must be one of auto, min, max, not 'mix'; did you mean"),
        (lambda: BestValue("val/loss", min_delta=-1), "min_delta is -1; give a number of at least 0"),
        (lambda: EverySteps(0), "a freq of at least 1"),
        (lambda: EverySteps("5"), "an after of at least 0, not '5' and None"),
        (lambda: EverySeconds(0), "a number of seconds above 0, not 0"),
        (lambda: EverySeconds("5"), "EverySeconds: seconds is '5'; give a number of at least 0"),
    ],
)
def test_what_makes_no_trigger_is_refused(make, message: str) -> None:
    refused(make, message)
