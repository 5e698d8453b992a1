"""Updaters pass the updater contract with SINGA's formulas; test_nn_optimizers.py compares them with PyTorch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.registry import register
from dsinga.job import UpdaterConf, UpdaterType
from dsinga.ops import SparseRows
from dsinga.ops import update as module
from dsinga.testing import UpdaterContract
from dsinga.testing.updaters import LR_SCALE, WD_SCALE
from dsinga.training import Updater, create_updater
from tests.support.refusals import refused

BUILT_IN = [kind.name for kind in UpdaterType if kind is not UpdaterType.kUserUpdater]
RATE = {"type": "kStep", "base_lr": 0.1, "step_conf": {"gamma": 0.5, "change_freq": 2}}
BETAS = {"beta1": 0.8, "beta2": 0.95}
OPTIONS = {
    "kRMSProp": {"rmsprop_conf": {"rho": 0.8}},
    "kAdaDelta": {"adadelta_conf": {"rho": 0.7}},
    "kAdam": {"adam_conf": BETAS},
    "kAdamW": {"adamw_conf": BETAS},
    "kAdamMax": {"adammax_conf": BETAS},
    "kLamb": {"lamb_conf": BETAS},
    "kMuon": {"muon_conf": {"beta": 0.8}},
    "kLion": {"lion_conf": BETAS},
}


PENALTIES = {"l1": 0.05, "l2": 0.03, "clip_low": -0.5, "clip_high": 0.7}
MOVING = {"base_momentum": 0.3, "final_momentum": 0.8, "saturation_step": 4}


def make_updater(kind, **more):
    return create_updater(conf_of(kind, **more))


def conf_of(kind, **more):
    """Return a configuration; ``momentum`` is left out for updaters that refuse it."""
    if kind in ("kAdamW", "kLion", "kLamb", "kMuon"):
        more.pop("momentum", None)
    return UpdaterConf(**{"type": kind, "learning_rate": RATE, **OPTIONS.get(kind, {}), **more})


class TestBuiltInUpdaters(UpdaterContract):
    """The formulas are those of SINGA's page, section by section; delta is large enough to matter."""

    confs = [
        conf_of(kind, **clip, weight_decay=decay, momentum=momentum, delta=1e-3)
        for kind in BUILT_IN
        for clip in ({}, {"clip_low": -0.5, "clip_high": 0.7})
        for decay, momentum in ((0.0, 0.0), (0.02, 0.9))
    ] + [conf_of(kind, momentum_conf=MOVING, weight_decay=0.02) for kind in ("kSGD", "kNesterov")]
    confs += [
        conf_of(kind, decoupled_weight_decay=True, weight_decay=0.02, momentum=0.9, delta=1e-3)
        for kind in ("kSGD", "kNesterov", "kRMSProp", "kLion")
    ]
    confs.append(conf_of("kRMSProp", rmsprop_conf={"rho": 0.8, "centered": True}, weight_decay=0.02, delta=1e-3))

    confs += [conf_of(kind, **PENALTIES, delta=1e-3) for kind in ("kSGD", "kAdam")]

    def formula(self, conf, step, lr, w, g, slots):
        assert lr == 0.1 * 0.5 ** (step // 2) * LR_SCALE
        if conf.momentum_conf:  # 0.3 at step 0, 0.8 from step 4 on
            conf = conf.replace(momentum=min(0.3 + 0.5 / 4 * step, 0.8))
        if conf.type.name in ("kAdamW", "kLamb", "kMuon"):
            return getattr(self, conf.type.name)(step + 1, conf, lr, w, g, **slots)
        return getattr(self, conf.type.name)(conf, lr, w, g, **slots)

    def kSGD(self, conf, lr, w, g, history=0.0):
        history = conf.momentum * history - lr * g
        return w + history, {"history": history} if conf.momentum else {}

    def kNesterov(self, conf, lr, w, g, history):
        m, before = conf.momentum, history
        history = m * history + lr * g
        return w - ((1 + m) * history - m * before), {"history": history}

    def kAdaGrad(self, conf, lr, w, g, squares):
        squares = squares + g**2
        return w - lr * g / np.sqrt(squares + conf.delta), {"squares": squares}

    def kRMSProp(self, conf, lr, w, g, squares, mean=None):
        squares = 0.8 * squares + (1 - 0.8) * g**2
        if mean is None:
            return w - lr * g / np.sqrt(squares + conf.delta), {"squares": squares}
        mean = 0.8 * mean + (1 - 0.8) * g
        root = np.sqrt(squares - mean**2 + conf.delta)
        return w - lr * g / root, {"squares": squares, "mean": mean}

    def kAdaDelta(self, conf, lr, w, g, squares, updates):
        squares = 0.7 * squares + (1 - 0.7) * g**2
        change = g * np.sqrt(updates + conf.delta) / np.sqrt(squares + conf.delta)
        return w - lr * change, {"squares": squares, "updates": 0.7 * updates + (1 - 0.7) * change**2}

    def kAdam(self, conf, lr, w, g, mean, squares):
        mean = 0.8 * mean + (1 - 0.8) * g
        squares = 0.95 * squares + (1 - 0.95) * g**2
        return w - lr * mean / np.sqrt(squares + conf.delta), {"mean": mean, "squares": squares}

    def kAdamW(self, count, conf, lr, w, g, mean, squares):
        mean = 0.8 * mean + (1 - 0.8) * g
        squares = 0.95 * squares + (1 - 0.95) * g**2
        first, second = mean / (1 - 0.8**count), squares / (1 - 0.95**count)
        return w - lr * first / (np.sqrt(second) + conf.delta), {"mean": mean, "squares": squares}

    def kLamb(self, count, conf, lr, w, g, mean, squares):
        change, state = self.kAdamW(count, conf, 1.0, 0.0, g, mean, squares)
        change = -change + conf.weight_decay * WD_SCALE * w
        return w - lr * np.linalg.norm(w) / np.linalg.norm(change) * change, state

    def kMuon(self, count, conf, lr, w, g, mean):
        """Of a vector, which is a matrix of rank 1: the iterations are those of its only singular value."""
        mean = 0.8 * mean + (1 - 0.8) * g
        ahead = 0.8 * mean / (1 - 0.8 ** (count + 1)) + (1 - 0.8) * g / (1 - 0.8**count)
        norm = np.linalg.norm(ahead)
        value = norm / (norm + conf.delta)
        for _ in range(5):
            value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
        return w - lr * 0.2 * np.sqrt(w.size) * value * ahead / norm, {"mean": mean}

    def kAdamMax(self, conf, lr, w, g, mean, norm):
        mean = 0.8 * mean + (1 - 0.8) * g
        norm = np.maximum(0.95 * norm, np.abs(g)) + conf.delta
        return w - lr * mean / norm, {"mean": mean, "norm": norm}

    def kLion(self, conf, lr, w, g, mean):
        return w - lr * np.sign(0.8 * mean + (1 - 0.8) * g), {"mean": 0.95 * mean + (1 - 0.95) * g}


def numbers(seed, size):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@pytest.mark.parametrize("kind", BUILT_IN)
@pytest.mark.parametrize("size", [3, 500])
def test_every_updater_clips_by_norm(kind, size, monkeypatch):
    """The same as with a gradient scaled down before, for any block size; a gradient within the norm is not scaled."""
    monkeypatch.setattr(module, "BLOCK", 64)
    plain, clipping = make_updater(kind, weight_decay=0.1), make_updater(kind, weight_decay=0.1, clip_norm=2.0)
    gradient = numbers(1, size)
    for length in (0.5, 7.0):
        scaled = gradient * np.float32(length / np.linalg.norm(gradient))
        expected, value = numbers(0, size), numbers(0, size)
        plain.update(0, expected, scaled * np.float32(min(1.0, 2.0 / length)), plain.create_state(size))
        clipping.update(0, value, scaled, clipping.create_state(size))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    assert np.isclose(np.linalg.norm(scaled), 7.0), "the gradient is left as it is"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_clipping_does_not_hide_infinite_gradients(bad):
    value = np.zeros(3, np.float32)
    make_updater("kSGD", clip_norm=1.0).update(0, value, np.array([1, bad, 2], np.float32), {})
    assert np.isfinite(value).tolist() == [True, False, True]


def test_a_constant_gradient_of_a_centred_mean_gives_numbers():
    """Rounding may leave the variance below 0."""
    updater = make_updater("kRMSProp", rmsprop_conf={"rho": 0.9, "centered": True}, delta=1e-20)
    value, state = np.ones(500, np.float32), updater.create_state(500)
    for step in range(200):
        updater.update(step, value, numbers(0, 500), state)
    assert np.isfinite(value).all()


def test_lion_does_not_move_where_nothing_points():
    updater, value = make_updater("kLion"), np.ones(4, np.float32)
    updater.update(0, value, np.array([0, -0.0, 1e-29, -1e30], np.float32), updater.create_state(4))
    np.testing.assert_array_equal(value, np.ones(4, np.float32) - np.float32(0.1) * np.array([0, 0, 1, -1], np.float32))


def test_plain_sgd_keeps_no_state():
    assert make_updater("kSGD").create_state(10) == {}
    assert list(make_updater("kSGD", momentum=0.5).create_state(10)) == ["history"]


def test_a_users_updater_is_found_by_name():
    @register("updater", "SignDescent")
    class SignSGD(Updater):
        slots = ("seen",)

        def change(self, lr, w, g, slots, t, s):
            slots[0] += 1
            w -= lr * np.sign(g)

    @register("schedule", "Doubling")
    def doubling(conf):
        return lambda step: np.float64(conf.base_lr * 2**step)  # a numpy number must not widen float32 arrays

    conf = UpdaterConf(
        type="kUserUpdater",
        user_type="SignDescent",
        learning_rate={"type": "kUserChange", "user_type": "Doubling", "base_lr": 0.5},
    )
    updater, value = create_updater(conf), np.zeros(2, np.float32)
    state = updater.create_state(2)
    for step in range(2):
        updater.update(step, value, np.array([3, -4], np.float32), state)
    assert value.tolist() == [-1.5, 1.5]
    assert state["seen"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"type": "kUserUpdater"}, "needs user_type: the name of a registered updater"),
        ({"type": "kUserUpdater", "user_type": "SignSGDD"}, "no updater is registered as 'SignSGDD'"),
        ({"type": "kRMSProp"}, "updater kRMSProp needs rmsprop_conf"),
        ({"type": "kSGD", "clip_norm": 1, "clip_high": 1}, "clips twice: give clip_norm, or clip_low and clip_high"),
    ],
)
def test_wrong_updater_configurations_are_refused(conf, message):
    refused(lambda: create_updater(UpdaterConf(**conf)), message)


def test_an_update_of_no_rows_changes_nothing():
    updater, value = make_updater("kAdam", weight_decay=1.0, clip_norm=1.0), numbers(0, 6)
    updater.update(
        0, value, SparseRows(np.empty(0, np.int64), np.empty((0, 3), np.float32), (2, 3)), updater.create_state(6)
    )
    np.testing.assert_array_equal(value, numbers(0, 6))


@given(st.dictionaries(st.integers(0, 20), st.floats(0.01, 1)), st.integers(0, 30))
def test_a_factor_multiplies_the_rate_from_its_step_on(factors, step):
    """A table of factors gives the same rates as a schedule that includes them."""
    sgd = make_updater("kSGD")
    schedule = sgd.rate(step)
    sgd.set_rate_factors(factors)
    earlier = [start for start in sorted(factors) if start <= step]
    assert sgd.rate_at(step) == (schedule * factors[earlier[-1]] if earlier else schedule)
    value = np.ones(3, np.float32)
    sgd.update(step, value, np.ones(3, np.float32), {})
    np.testing.assert_array_equal(value, 1 - np.float32(sgd.rate_at(step)))
    sgd.set_rate_factors({})
    assert sgd.rate_at(step) == schedule
