"""The cupy backend's update kernels, compiled as C++, give numpy's bits in one launch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dsinga.job import LRGenConf, ParamConf, RMSPropConf, UpdaterConf, UpdaterType
from dsinga.layers import ParamSpec
from dsinga.net import Param
from dsinga.ops import SparseRows, Update
from dsinga.ops.ufunc_programs import Untraceable, trace
from dsinga.training import Updater, create_updater
from dsinga.training.local_updater import LocalUpdater
from tests.support import emulated_cupy

BUILT_IN = [kind for kind in UpdaterType if kind is not UpdaterType.kUserUpdater]
WHOLE = [UpdaterType.kLamb, UpdaterType.kMuon]  # which look at whole params
SIZES = (5000, 1, 2048, 12)  # three blocks, one element, one full block, and a table of six rows
ROWS = np.array([1, 4])


@pytest.fixture(scope="module")
def ops() -> Any:
    return emulated_cupy.load().for_worker(0)


def updater_of(kind: UpdaterType, **more: Any) -> Updater:
    rate, rho = LRGenConf(type="kInverse", base_lr=0.1, inverse_conf={"gamma": 0.5, "pow": 1}), RMSPropConf(rho=0.9)
    momentum = 0.9 if kind in (UpdaterType.kSGD, UpdaterType.kNesterov) else 0.0
    return create_updater(UpdaterConf(type=kind, rmsprop_conf=rho, learning_rate=rate, momentum=momentum, **more))


class Params:
    """Params of SIZES with their states, on the host and on the device; the last one's gradients are sparse."""

    def __init__(self, updater: Updater, ops: Any):
        self._updater, self._ops, self._rng = updater, ops, np.random.default_rng(4)
        values = [self._numbers(size) for size in SIZES]
        self.host = [(value, updater.initial_state(value)) for value in values]
        self.device = [(ops.asarray(v), {k: ops.asarray(a) for k, a in s.items()}) for v, s in self.host]

    def _numbers(self, size: int) -> np.ndarray:
        return self._rng.standard_normal(size).astype(np.float32)

    def step(self, step: int, scales: Sequence[tuple[float, float]]) -> None:
        """Update the params on the host and on the device."""
        updates = []
        for place, (value, state) in enumerate(self.host):
            flat = self._numbers(4 if value.size == 12 else value.size)
            gradients: list[Any] = [flat, self._ops.asarray(flat)]
            if value.size == 12:
                pairs = ((ROWS, flat), (self._ops.asarray(ROWS), gradients[1]))
                gradients = [SparseRows(rows, values.reshape(2, 2), (6, 2)) for rows, values in pairs]
            self._updater.update(step, value, gradients[0], state, *scales[place])
            device_value, device_state = self.device[place]
            updates.append(self._updater.create_update(step, device_value, gradients[1], device_state, *scales[place]))
        self._ops.update(updates, self._updater.conf.clip_norm)

    def compare(self, check: Any) -> None:
        for (value, state), (device_value, device_state) in zip(self.host, self.device, strict=True):
            check(self._ops.to_numpy(device_value), value)
            for slot, array in state.items():
                check(self._ops.to_numpy(device_state[slot]), array)


def launches() -> list[str]:
    return [name for _, what, name in emulated_cupy.log if what == "kernel"]


# Without momentum, with one state and with two, and by signs: of each kind one.
QUICK = {UpdaterType.kSGD, UpdaterType.kRMSProp, UpdaterType.kAdam, UpdaterType.kLion}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.ci) for kind in BUILT_IN if kind not in WHOLE],
)
def test_all_params_are_changed_by_one_launch_with_the_bits_of_numpy(ops: Any, kind: UpdaterType):
    clip = {"clip_low": -0.1, "clip_high": 0.1} if kind is UpdaterType.kSGD else {}
    params = Params(updater_of(kind, weight_decay=0.01, **clip), ops)
    scales = [(1.0, 1.0), (2.0, 0.0), (1.0, 1.0), (0.5, 1.0)]  # two programs: with weight decay and without
    for step in range(3):
        emulated_cupy.log.clear()
        params.step(step, scales)
        assert launches() == ["update"]
    params.compare(np.testing.assert_array_equal)


def test_averages_of_params_are_changed_by_the_same_launch(ops: Any):
    params = Params(updater_of("kAdam", ema_conf={"decay": 0.9, "warmup": True, "every": 2}), ops)
    for step in range(6):
        emulated_cupy.log.clear()
        params.step(step, [(1.0, 1.0)] * len(SIZES))
        assert launches() == ["update"]
    params.compare(np.testing.assert_array_equal)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("clip_global_norm", [0.0, 0.5])
def test_whole_params_are_changed_on_the_device(ops: Any, kind: UpdaterType, clip_global_norm: float):
    """By the same functions as on the host; a sparse gradient is made dense before it is sent."""
    shapes = {"matrix": (6, 4), "vector": (5,)}
    params = {name: Param(name, ParamSpec("weight", shape), ParamConf()) for name, shape in shapes.items()}
    rng = np.random.default_rng(4)
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    updater = updater_of(kind, weight_decay=0.01, clip_global_norm=clip_global_norm)
    replicas = [LocalUpdater(updater, params, backend) for backend in (None, ops)]
    for replica in replicas:
        replica.put(values)
    for _ in range(3):
        sparse = SparseRows(ROWS, rng.standard_normal((2, 4)).astype(np.float32), (6, 4))
        vector = rng.standard_normal(5).astype(np.float32)
        for replica, backend in zip(replicas, (None, ops), strict=True):
            replica.push("matrix", sparse)
            replica.push("vector", vector if backend is None else ops.asarray(vector))
        if clip_global_norm:
            assert replicas[0].squares == replicas[1].squares
            assert len(replicas[0].squares) == 2
        for replica in replicas:
            replica.finish(0.5 if clip_global_norm else 1.0)
    expected, actual = (replica.copy_values() for replica in replicas)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-6)


@pytest.mark.parametrize("norm", [1.5, 1e3])
def test_gradients_are_scaled_down_on_the_device(ops: Any, norm: float):
    params = Params(updater_of(UpdaterType.kSGD, clip_norm=norm), ops)
    emulated_cupy.log.clear()
    params.step(0, [(1.0, 1.0)] * len(SIZES))
    assert launches() == ["squares", "shrinkages", "update"]
    params.compare(lambda actual, expected: np.testing.assert_allclose(actual, expected, rtol=1e-6))


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_clipping_leaves_infinite_gradients_infinite(ops: Any, lost: float):
    updater = updater_of(UpdaterType.kSGD, clip_norm=1.0)
    value, gradient = ops.asarray(np.ones(3, np.float32)), ops.asarray(np.array([1, lost, 2], np.float32))
    state = {"history": ops.asarray(np.zeros(3, np.float32))}
    ops.update([updater.create_update(0, value, gradient, state)], 1.0)
    expected = np.ones(3, np.float32)
    updater.update(0, expected, np.array([1, lost, 2], np.float32), updater.create_state(3))
    np.testing.assert_array_equal(ops.to_numpy(value), expected)


def test_unchanged_tables_are_not_uploaded_again(ops: Any):
    updater = create_updater(UpdaterConf(type="kSGD", learning_rate=LRGenConf(type="kFixed", base_lr=0.1)))
    value, gradient = (ops.asarray(np.ones(3, np.float32)) for _ in range(2))
    uploads = []
    for step in range(2):
        emulated_cupy.log.clear()
        ops.update([updater.create_update(step, value, gradient, {})])
        uploads.append(sum(what == "copy" for _, what, _ in emulated_cupy.log))
    assert uploads[0] > uploads[1] == 0
    np.testing.assert_array_equal(ops.to_numpy(value), np.float32(1) - np.float32(0.1) - np.float32(0.1))


class TestFormulas:
    def test_a_program_is_the_same_whatever_the_rate(self):
        updater, program = updater_of(UpdaterType.kAdam, weight_decay=0.1), []
        for step in range(2):
            formula = updater.create_update(step, *[np.ones(1, np.float32)] * 2, updater.create_state(1)).formula
            program.append(trace(formula, 2))
        assert program[0].program == program[1].program
        assert program[0].constants != program[1].constants
        assert program[0].program.changed == (0, 2, 3)

    @pytest.mark.parametrize(
        "formula",
        [
            lambda w, g, slots, t, s: np.exp(g, out=t),  # not exactly rounded
            lambda w, g, slots, t, s: np.add(w, np.float64(1), out=w),
            lambda w, g, slots, t, s: np.add(w, 1.0, out=g),
            lambda w, g, slots, t, s: np.add.reduce(w),
            lambda w, g, slots, t, s: np.add(w, np.ones(3), out=w),
            lambda w, g, slots, t, s: np.asarray(w),
            lambda w, g, slots, t, s: None if w > 0 else 1,
        ],
    )
    def test_formulas_that_no_program_can_express(self, formula: Any):
        with pytest.raises(Untraceable):
            trace(formula, 0)

    def test_a_formula_that_is_no_program_is_called(self, ops: Any):
        def formula(w: Any, g: Any, slots: Any, t: Any, s: Any) -> None:
            w[...] = np.exp(g)

        value, gradient = ops.asarray(np.ones(3, np.float32)), ops.asarray(np.ones(3, np.float32))
        ops.update([Update(formula, value, gradient, [])])
        np.testing.assert_array_equal(ops.to_numpy(value), np.exp(np.ones(3, np.float32)))
