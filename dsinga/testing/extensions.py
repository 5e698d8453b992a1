"""Tests for extensions of the training loop, and for add-ons that bring components by entry points."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from typing import Any, ClassVar

import numpy as np
import pytest

from dsinga.base.components import GROUP, built_in, offered
from dsinga.base.registry import KINDS, find
from dsinga.checkpoint.tensor_files import separate_arrays
from dsinga.extensions import Extension
from dsinga.job.component import settings_class
from dsinga.testing.simulated_loop import SimulatedLoop

CHECKPOINT_FREQ = 11  # steps; rows are at multiples of 5 and of 10


class ExtensionContract:
    """The tests that every extension must pass; a subclass, named ``Test...``, creates an extension.

    An extension must:

    - keep all that its later actions depend on in its state, so that a run resumed from any checkpoint equals an
      unbroken one. If it has stopped the run, it stops it again in ``start``.
    - start from scratch with an empty state, so that one object serves several runs.
    - keep only plain values and arrays in its state.

    Runs are simulated without a cluster: 200 steps, rows of "train" every 5 and of "val" every 10, with metrics from
    :meth:`metrics_of`.

    >>> from dsinga.extensions import EarlyStopping
    >>> from dsinga.testing import ExtensionContract
    >>> class TestEarlyStopping(ExtensionContract):  # in a file test_early_stopping.py, run by pytest
    ...     def create(self):
    ...         return EarlyStopping("val/loss", patience=3)
    """

    def create(self) -> Extension:
        """Return a new extension; subclasses implement this."""
        pytest.skip("the test class creates no extension")

    def metrics_of(self, phase: str, step: int) -> Mapping[str, float]:
        """Return a phase's metrics at a step: a loss that falls in waves up to step 100, then rises."""
        loss = 1 + abs(step - 100) / 50 + 0.3 * math.cos(step)
        return {"loss": loss, "accuracy": 1 / loss}

    def simulate(self, extension: Extension, checkpoint: Mapping[str, Any] | None = None) -> SimulatedLoop:
        """Simulate a run with the extension, from its beginning or from a checkpoint.

        A run from the beginning writes checkpoints at steps with all last digits; a resumed run writes only the last.
        """
        freq = CHECKPOINT_FREQ if checkpoint is None else 1000
        return SimulatedLoop([extension], self.metrics_of, checkpoint_freq=freq).run(checkpoint)

    def test_a_resumed_run_does_what_an_unbroken_one_does(self) -> None:
        """A run resumed from any checkpoint has an unbroken run's history, rates and result."""
        unbroken = self.simulate(self.create())
        assert unbroken.checkpoints
        for step, checkpoint in unbroken.checkpoints.items():
            assert_same_run(self.simulate(self.create(), checkpoint), unbroken, f"resumed after {step} steps")

    def test_one_object_serves_several_runs(self) -> None:
        """A second run with the same extension object equals the first."""
        extension = self.create()
        first, second = self.simulate(extension), self.simulate(extension)
        assert_same_run(second, first, "in a second run of one object")

    def test_looking_at_the_state_changes_nothing(self) -> None:
        """A run is the same with and without checkpoints."""
        seldom = SimulatedLoop([self.create()], self.metrics_of, checkpoint_freq=1000).run()
        assert_same_run(seldom, self.simulate(self.create()), "without checkpoints on the way")

    def test_an_empty_state_is_that_of_a_new_run(self) -> None:
        """After ``load_state({})``, the extension's state equals a new object's."""
        extension, new = self.create(), self.create()
        self.simulate(extension)
        extension.load_state({})
        extension.trigger.load_state({})
        new.load_state({})
        assert_same_state(extension.state_dict(), new.state_dict())
        assert extension.trigger.state_dict() == new.trigger.state_dict()

    def test_the_state_can_be_saved(self) -> None:
        """The extension's state has only plain values and arrays, before and after a run."""
        extension = self.create()
        separate_arrays(extension.state_dict())
        self.simulate(extension)
        separate_arrays(extension.state_dict())


def assert_same_run(run: SimulatedLoop, expected: SimulatedLoop, when: str) -> None:
    """Assert that two runs have the same end, history, learning rates and result."""
    assert (run.step, run.stopped) == (expected.step, expected.stopped), when
    assert run.rows == expected.rows, when
    assert run.rate_factors == expected.rate_factors, when
    assert run.remarks == expected.remarks, when
    np.testing.assert_array_equal(run.result, expected.result, err_msg=when)
    last, expected_last = run.checkpoints.get(run.step), expected.checkpoints[run.step]
    if last is not None:
        assert_same_state(last["extensions"], expected_last["extensions"])


def assert_same_state(state: Any, expected: Any) -> None:
    """Assert that two states, nested dicts of plain values and arrays, are equal."""
    data, arrays = separate_arrays(state)
    expected_data, expected_arrays = separate_arrays(expected)
    assert data == expected_data
    for name, array in expected_arrays.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


class AddonContract:
    """The tests that an installed distribution with components must pass: its entry points name them."""

    distribution: ClassVar[str]

    def names(self) -> dict[tuple[str, str], Any]:
        """Return the distribution's entry points by kind and name."""
        points = distribution(self.distribution).entry_points.select(group=GROUP)
        return {(point.name.partition(".")[0], point.name.partition(".")[2]): point for point in points}

    def test_each_name_is_that_of_a_kind_and_of_no_other_component(self) -> None:
        """No other component has an entry point's name, because a job with a shared name is refused."""
        assert self.names()
        for kind, name in self.names():
            assert kind in KINDS
            assert len(offered(kind)[name]) == 1
            assert name not in built_in(kind)

    def test_each_component_is_found_and_says_what_it_is(self) -> None:
        """Each component has a docstring, because tables and completion show its first line."""
        for kind, name in self.names():
            component = find(kind, name)
            assert component is not None
            assert component.__doc__
            settings = settings_class(component)
            assert settings is None or settings.__doc__

    def test_nothing_is_imported_before_it_is_asked_for(self) -> None:
        """Listing components imports none of them, so that processes do not wait for unused ones."""
        modules = {point.module for point in self.names().values()}
        listed = (
            f"from dsinga.base.registry import KINDS, registered; [*map(registered, KINDS)]; assert not {modules!r}"
        )
        subprocess.run([sys.executable, "-c", f"import sys; {listed} & sys.modules.keys()"], check=True, timeout=60)
