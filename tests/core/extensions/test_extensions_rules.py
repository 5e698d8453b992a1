"""What the ready-made extensions do, in runs that are simulated with given metrics."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.checkpoint import read_params
from dsinga.extensions import (
    EarlyStopping,
    EverySeconds,
    EverySteps,
    Extension,
    KeepBest,
    ReduceOnPlateau,
    StopBeyond,
    StopOnTime,
    WhenBest,
    create_extensions,
)
from dsinga.job import Job
from dsinga.testing import SimulatedLoop
from tests.support.refusals import refused

LOSSES = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), min_size=1, max_size=20)


def simulate(losses: Sequence[float], *extensions: Extension, **more) -> SimulatedLoop:
    """Run as many validations, one after every 10 steps, as there are losses."""

    def metrics_of(phase: str, step: int) -> dict[str, float]:
        return {"loss": losses[min(step // 10, len(losses)) - 1]}

    return SimulatedLoop(extensions, metrics_of, train_steps=10 * len(losses), **more).run()


class Recording(Extension):
    """Notes the steps at which it runs."""

    def __init__(self, trigger):
        self.trigger = trigger
        self.steps: list[int] = []

    def run(self, loop) -> None:
        self.steps.append(loop.step)


class TestEarlyStopping:
    @given(LOSSES, st.integers(1, 4))
    def test_it_stops_after_so_many_values_without_improvement(self, losses: list[float], patience: int) -> None:
        """By a search for the first value that has that many before it which are no better than the best until then."""
        loop = simulate(losses, EarlyStopping("val/loss", patience))
        expected = len(losses)
        for end in range(1, len(losses) + 1):
            best = min(range(end), key=lambda at: losses[at])  # the first of equal ones
            if end - 1 - best >= patience:
                expected = end
                break
        assert loop.step == 10 * expected
        assert bool(loop.stopped) == (expected < len(losses) or loop.stopped != "")

    def test_it_says_why(self) -> None:
        loop = simulate([0.5, 0.3, 0.4, 0.3, 0.2], EarlyStopping("val/loss", 2))
        assert loop.stopped == "val/loss has not improved on its best (0.3 after 20 steps) in the last 2 values"
        assert loop.step == 40

    def test_higher_values_of_an_accuracy_are_better(self) -> None:
        rising = SimulatedLoop([EarlyStopping("val/accuracy", 1)], lambda phase, step: {"accuracy": step}).run()
        assert not rising.stopped
        falling = SimulatedLoop([EarlyStopping("val/accuracy", 1)], lambda phase, step: {"accuracy": -step}).run()
        assert falling.step == 20

    def test_a_row_of_training_can_be_monitored(self) -> None:
        """Training pauses where such a row is due, so that it stops there."""
        loop = SimulatedLoop([EarlyStopping("train/loss", 3)], lambda phase, step: {"loss": step}).run()
        assert loop.step == 20
        assert [row["step"] for row in loop.rows if row["phase"] == "train"] == [5, 10, 15, 20]

    def test_with_more_patience_a_stopped_run_goes_on(self) -> None:
        stopped = simulate([0.1] + [0.5] * 9, EarlyStopping("val/loss", 3))
        assert stopped.step == 40

        def metrics_of(phase: str, step: int) -> dict[str, float]:
            return {"loss": 0.5}

        resumed = SimulatedLoop([EarlyStopping("val/loss", 5)], metrics_of, 100).run(stopped.checkpoints[40])
        assert resumed.step == 60


class TestKeepBest:
    def test_the_params_of_the_best_value_are_returned_and_written(self, tmp_path: Path) -> None:
        loop = simulate([0.5, 0.2, 0.3, 0.2, 0.4], KeepBest("val/loss"), workspace=tmp_path)
        np.testing.assert_array_equal(loop.result, np.full(3, 20))
        assert loop.remarks == ["the params are those after 20 steps, with the best val/loss: 0.2"]
        np.testing.assert_array_equal(read_params(tmp_path / "best.safetensors")["w"], np.full(3, 20))

    def test_before_the_first_value_the_last_params_are_returned(self) -> None:
        loop = SimulatedLoop([KeepBest("val/loss")], lambda phase, step: {"loss": float("nan")}, 30).run()
        np.testing.assert_array_equal(loop.result, np.full(3, 30))
        assert loop.remarks == [
            "the params are those of the last step: val/loss has been NaN each time, so that none was the best"
        ]

    def test_of_two_that_keep_the_best_the_later_one_says_so(self) -> None:
        values = {"loss": [0.5, 0.2, 0.3], "accuracy": [0.1, 0.2, 0.9]}
        extensions = [KeepBest("val/loss"), EarlyStopping("val/accuracy", 5, restore_best_weights=True)]

        def metrics_of(phase: str, step: int) -> dict[str, float]:
            return {name: each[step // 10 - 1] for name, each in values.items()}

        loop = SimulatedLoop(extensions, metrics_of, 30).run()
        np.testing.assert_array_equal(loop.result, np.full(3, 30))
        assert loop.remarks == [
            "the params are those after 30 steps, with the best val/accuracy: 0.9; they replace those that another "
            "extension returned"
        ]

    def test_it_keeps_the_best_of_a_run_that_is_stopped(self) -> None:
        loop = simulate([0.5, 0.2, 0.3, 0.3, 0.1], KeepBest("val/loss"), EarlyStopping("val/loss", 2))
        assert loop.step == 40
        np.testing.assert_array_equal(loop.result, np.full(3, 20))


class TestReduceOnPlateau:
    def test_after_a_fall_values_are_not_counted_for_a_while(self) -> None:
        loop = simulate([0.5] * 8, ReduceOnPlateau("val/loss", factor=0.5, patience=2, cooldown=1))
        assert loop.rate_factors == {30: 0.5, 60: 0.25}

    def test_the_rate_does_not_fall_below_a_limit(self) -> None:
        loop = simulate([0.5] * 8, ReduceOnPlateau("val/loss", factor=0.5, patience=1, min_factor=0.3))
        assert loop.rate_factors == {20: 0.5, 30: 0.3}

    @given(LOSSES, st.integers(1, 4))
    def test_it_agrees_with_pytorch(self, losses: list[float], patience: int) -> None:
        torch = pytest.importorskip("torch")
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience - 1, threshold=0)
        expected = {}
        for number, loss in enumerate(losses, 1):
            before = optimizer.param_groups[0]["lr"]
            plateau.step(loss)
            if optimizer.param_groups[0]["lr"] < before:
                expected[10 * number] = optimizer.param_groups[0]["lr"]
        assert simulate(losses, ReduceOnPlateau("val/loss", 0.5, patience)).rate_factors == expected


class TestStopBeyond:
    @pytest.mark.parametrize(
        ("bounds", "step", "reason"),
        [
            ({"below": 0.25}, 40, "val/loss is 0.2, below 0.25"),
            ({"above": 0.45}, 10, "val/loss is 0.5, above 0.45"),
            ({"above": 0.55, "below": 0.3}, 40, "val/loss is 0.2, below 0.3"),  # a value on a bound is not beyond it
            ({"above": 0.5, "below": 0.1}, 50, ""),
        ],
    )
    def test_it_stops_at_the_first_value_beyond(self, bounds: dict[str, float], step: int, reason: str) -> None:
        loop = simulate([0.5, 0.4, 0.3, 0.2, 0.1], StopBeyond("val_loss", **bounds))
        assert (loop.step, loop.stopped) == (step, reason)

    def test_values_that_are_no_numbers_are_beyond_nothing(self) -> None:
        assert not simulate([float("nan")] * 3, StopBeyond(above=0.5, below=0.1)).stopped


class TestStopOnTime:
    """A step of a simulated run takes a second, and it says that it needs 3 to stop."""

    def test_it_leaves_time_for_stopping_and_a_margin(self) -> None:
        loop = simulate([0.5] * 20, StopOnTime(100))
        assert loop.step == 100 - 3 - 5
        assert loop.stopped == "its time of 100 s is nearly over"

    def test_a_run_that_goes_on_has_the_history_of_an_unbroken_one(self) -> None:
        """What is done at the end of a run is not done where it is interrupted; each run has its own time."""
        unbroken = simulate([0.5] * 20)
        losses = [0.5] * 20
        interrupted = simulate(losses, StopOnTime(100))
        assert interrupted.rows[-1]["step"] == 90
        resumed = SimulatedLoop([], lambda phase, step: {"loss": 0.5}, 200).run(interrupted.checkpoints[92])
        assert resumed.rows == unbroken.rows

    def test_the_margin_has_a_limit(self) -> None:
        assert simulate([0.5] * 100, StopOnTime(900)).step == 900 - 3 - 30


class TestTriggersInARun:
    def test_extensions_run_at_the_steps_of_their_triggers(self) -> None:
        often, best = Recording(EverySteps(30)), Recording(WhenBest("val/loss"))
        simulate([0.5, 0.2, 0.3, 0.2, 0.1, 0.6], often, best)
        assert often.steps == [30, 60]
        assert best.steps == [10, 20, 50]

    def test_a_trigger_by_the_clock_pauses_training_where_it_can(self) -> None:
        timed = Recording(EverySeconds(25))
        simulate([0.5] * 10, timed)
        assert timed.steps == [25, 50, 75, 100]

    def test_a_function_is_called_for_each_row(self) -> None:
        seen: list[tuple[int, dict[str, float]]] = []
        (function,) = create_extensions(Job(train_steps=1), [lambda step, metrics: seen.append((step, metrics))])[2:]
        loop = simulate([0.5, 0.4], function)
        assert [step for step, _ in seen] == [row["step"] for row in loop.rows] == [5, 10, 10, 15, 20, 20]
        assert seen[2] == (10, {"val/loss": 0.5})

    def test_metrics_that_an_extension_records_can_be_monitored(self) -> None:
        class Probing(Recording):
            phase = "probe"

            def run(self, loop) -> None:
                super().run(loop)
                loop.record("probe", {"loss": loop.step})

        loop = simulate([0.5] * 10, Probing(EverySteps(7)), EarlyStopping("probe/loss", 2))
        assert loop.step == 21


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping("val/loss", patience=0), "patience is 0; give a whole number of at least 1"),
        (lambda: ReduceOnPlateau("val/loss", factor=1.5), "factor is 1.5; give a number between 0 and 1"),
        (lambda: EarlyStopping(min_delta="a"), "min_delta is 'a'; give a number of at least 0"),
        (lambda: EarlyStopping(restore_best_weights="no"), "restore_best_weights is 'no'; give True or False"),
        (lambda: EarlyStopping(5), "monitor is 5; give the name of a metric"),
        (lambda: StopBeyond(), "kStopBeyond needs above, as in above: 0.99, or below"),
        (lambda: StopBeyond(above=0.1, below=0.5), "above is 0.1 and below 0.5, so that every value ends training"),
        (lambda: StopOnTime([]), r"time is \[\]; give a text such as '2h'"),
        (lambda: ReduceOnPlateau("val/loss", cooldown=-1), "cooldown is -1; give a whole number of at least 0"),
    ],
)
def test_what_makes_no_rule_is_refused(make, message: str) -> None:
    refused(lambda: make(), message)
