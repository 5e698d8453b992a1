"""UpdaterContract: tests that every updater must pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from dsinga.job import UpdaterConf
from dsinga.ops import SparseRows
from dsinga.ops import update as update_module
from dsinga.training import Updater, create_updater

SIZE = 200  # elements of the param
STEPS = 6
LR_SCALE, WD_SCALE = 2.0, 3.0  # scales of the param

ParamArrays = Mapping[str, np.ndarray]


class UpdaterContract:
    """The tests that every updater must pass; a subclass, named ``Test...``, lists configurations of an updater.

    An updater must:

    - have the state arrays named in ``slots``, float32 and initially 0;
    - change param and state in place, in float32, and leave the gradient alone;
    - keep nothing between updates but the state, so that training can be resumed and threads can share the updater;
    - give a slice of a param the same bits as the whole param;
    - treat the rows of a sparse gradient as a separate param.

    :meth:`formula`, if defined, is the update in plain numpy, with which the updater must agree over 6 steps. The
    gradient already includes clipping and weight decay (a decoupled decay is in the param), and the rate includes
    ``lr_scale``.

    >>> import numpy as np
    >>> from dsinga.job import UpdaterConf
    >>> from dsinga.testing import UpdaterContract
    >>> class TestLion(UpdaterContract):  # in a file test_lion.py that registers the updater "Lion", run by pytest
    ...     confs = [UpdaterConf(user_type="Lion", momentum=0.9)]
    ...
    ...     def formula(self, conf, step, lr, w, g, slots):
    ...         mean = slots["mean"]
    ...         mean_after = conf.momentum * mean + (1 - conf.momentum) * g
    ...         return w - lr * np.sign(0.9 * mean + 0.1 * g), {"mean": mean_after}
    """

    confs: ClassVar[Sequence[UpdaterConf]] = ()
    rtol: ClassVar[float] = 2e-4
    atol: ClassVar[float] = 2e-5

    def formula(
        self, conf: UpdaterConf, step: int, lr: float, w: np.ndarray, g: np.ndarray, slots: ParamArrays
    ) -> tuple[np.ndarray, ParamArrays]:
        """Return the param and the slots, float64 arrays, after the update of ``step``; subclasses implement this."""
        pytest.skip("the test class defines no formula")

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test for each configuration (called by pytest)."""
        if "conf" in metafunc.fixturenames:
            names = [conf.user_type or conf.type.name for conf in cls.confs]
            metafunc.parametrize("conf", cls.confs, ids=names)

    def test_the_update_follows_the_formula(self, conf: UpdaterConf) -> None:
        """Six updates agree with the formula, with schedule, scales, clipping and weight decay."""
        updater, value = make_updater(conf), numbers(0)
        state = updater.create_state(SIZE)
        w: np.ndarray = value.astype(np.float64)
        slots: ParamArrays = {slot: np.zeros(SIZE) for slot in updater.slots}
        for step in range(STEPS):
            gradient = numbers(step + 1)
            lr = updater.rate(step) * LR_SCALE
            g = prepared(conf, gradient, w)
            if updater.whole and not updater.decoupled:
                pass  # the formula has the decay
            elif updater.decoupled:
                w = w - lr * conf.weight_decay * WD_SCALE * w
            else:
                g = g + w * conf.weight_decay * WD_SCALE
            w, slots = self.formula(conf, step, lr, w, g, dict(slots))
            updater.update(step, value, gradient, state, LR_SCALE, WD_SCALE)
            np.testing.assert_allclose(value, w, self.rtol, self.atol, err_msg=f"param after step {step}")
            for slot, array in slots.items():
                np.testing.assert_allclose(state[slot], array, self.rtol, self.atol, err_msg=f"{slot}, step {step}")

    def test_the_state_is_what_slots_names(self, conf: UpdaterConf) -> None:
        """The state has float32 arrays of the param's size, 0 before the first update."""
        updater = make_updater(conf)
        state = updater.create_state(SIZE)
        assert tuple(state) == tuple(updater.slots)
        for slot, array in state.items():
            assert array.dtype == np.float32, slot
            assert array.shape == (SIZE,), slot
            assert not array.any(), slot

    def test_param_and_state_change_in_place_in_float32(self, conf: UpdaterConf) -> None:
        """Param and state change in place; the gradient does not, and empty arrays are no error."""
        updater, value, gradient = make_updater(conf), numbers(0), numbers(1)
        gradient.flags.writeable = False
        state = updater.create_state(SIZE)
        arrays = dict(state)
        updater.update(0, value, gradient, state, LR_SCALE, WD_SCALE)
        assert (value != numbers(0)).any(), "the update must change w in place, as by w -= ..., not by w = w - ..."
        assert np.array_equal(gradient, numbers(1)), "change must not write to g"
        assert all(state[slot] is array for slot, array in arrays.items())
        assert {array.dtype for array in (value, *state.values())} == {np.dtype(np.float32)}
        updater.update(0, value[:0], gradient[:0], updater.create_state(0))

    def test_a_slice_of_a_param_gets_the_bits_of_the_whole(
        self, conf: UpdaterConf, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Any slice of a param gets the whole's bits; skipped with ``clip_norm`` and ``whole``."""
        if make_updater(conf).needs_whole_params:
            pytest.skip("the update is one of whole params")
        updater, whole, parts = make_updater(conf), numbers(0), numbers(0)
        state, part_state = updater.create_state(SIZE), updater.create_state(SIZE)
        block = update_module.BLOCK
        for step, (bounds, length) in enumerate([((0, 1, 64, SIZE), 7), ((0, 131, SIZE), 64), ((0, 7, SIZE), block)]):
            monkeypatch.setattr(update_module, "BLOCK", block)
            updater.update(step, whole, numbers(step + 1), state)
            monkeypatch.setattr(update_module, "BLOCK", length)
            for start, stop in pairwise(bounds):
                slots = {slot: array[start:stop] for slot, array in part_state.items()}
                updater.update(step, parts[start:stop], numbers(step + 1)[start:stop], slots)
        assert_same({"param": parts, **part_state}, {"param": whole, **state})

    def test_training_can_be_resumed(self, conf: UpdaterConf) -> None:
        """A new updater continues from only param, state and step; one updater serves two params in turn."""
        updater, value, second = make_updater(conf), numbers(0), numbers(9)
        state, second_state = updater.create_state(SIZE), updater.create_state(SIZE)
        resumed, resumed_state = numbers(0), updater.create_state(SIZE)
        for step in range(STEPS):
            updater.update(step, value, numbers(step + 1), state)
            updater.update(step, second, numbers(step + 20), second_state)
            resumed, resumed_state = resumed.copy(), {slot: array.copy() for slot, array in resumed_state.items()}
            make_updater(conf).update(step, resumed, numbers(step + 1), resumed_state)
        assert_same({"param": resumed, **resumed_state}, {"param": value, **state})

    def test_rows_of_a_sparse_gradient_are_updated_as_a_param_of_their_own(self, conf: UpdaterConf) -> None:
        """Rows without gradient change neither by weight decay nor by momentum; skipped with ``whole``."""
        if make_updater(conf).whole:
            pytest.skip("the update is one of whole params")
        updater, value, rows = make_updater(conf), numbers(0), np.array([0, 3])
        table = (5, SIZE // 5)
        part = value.reshape(table)[rows].reshape(-1)
        state, part_state = updater.create_state(SIZE), updater.create_state(part.size)
        for step in range(3):
            gradient = numbers(step + 1)[: part.size]
            sparse = SparseRows(rows, gradient.reshape(2, -1), table)
            updater.update(step, value, sparse, state, LR_SCALE, WD_SCALE)
            updater.update(step, part, gradient, part_state, LR_SCALE, WD_SCALE)
        before = {"param": numbers(0), **updater.create_state(SIZE)}
        for name, array in {"param": value, **state}.items():
            expected = before[name].reshape(table)
            expected[rows] = {"param": part, **part_state}[name].reshape(2, -1)
            np.testing.assert_array_equal(array.reshape(table), expected, err_msg=name)


def make_updater(conf: UpdaterConf) -> Updater:
    """Make an updater as a server does; raise UserError for a wrong configuration."""
    return create_updater(conf)


def numbers(seed: int) -> np.ndarray:
    """Return normally distributed float32 numbers (200,), determined by the seed."""
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def prepared(conf: UpdaterConf, gradient: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Apply clipping and penalties to a gradient, in float64, as they are applied before an update."""
    g: np.ndarray = gradient.astype(np.float64)
    if conf.clip_norm:
        g = g * min(1.0, conf.clip_norm / float(np.linalg.norm(g)))
    if conf.clip_high > conf.clip_low:
        g = np.clip(g, conf.clip_low, conf.clip_high)
    return g + conf.l1 * np.sign(w) + 2 * conf.l2 * w


def assert_same(actual: ParamArrays, expected: ParamArrays) -> None:
    """Assert that arrays of equal names have equal bits."""
    assert list(actual) == list(expected)
    for name, array in actual.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
