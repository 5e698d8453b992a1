"""The updater contract passes a user's right updater and names the fault of a wrong one."""

from collections.abc import Iterator

import numpy as np
import pytest

from dsinga.base import registry
from dsinga.job import UpdaterConf
from dsinga.testing import UpdaterContract
from dsinga.training import Updater
from tests.support.refusals import refused
from tests.support.registries import restored_registry


class Lion(Updater):
    """Chen et al. (2023): the sign of a running mean; right in every respect."""

    slots = ("mean",)

    def change(self, lr, w, g, slots, t, s):
        (mean,) = slots
        w -= lr * np.sign(0.9 * mean + 0.1 * g)
        mean *= self.conf.momentum
        mean += (1 - self.conf.momentum) * g


registry.register("updater", "TestedLion")(Lion)


def conf_of(name: str, **more: object) -> UpdaterConf:
    rate = {"type": "kStep", "base_lr": 0.1, "step_conf": {"gamma": 0.5, "change_freq": 2}}
    return UpdaterConf(type="kUserUpdater", user_type=name, momentum=0.9, learning_rate=rate, **more)


class TestLion(UpdaterContract):
    confs = [conf_of("TestedLion"), conf_of("TestedLion", weight_decay=0.1, clip_low=-1, clip_high=0.5)]

    def formula(self, conf, step, lr, w, g, slots):
        mean = slots["mean"]
        mean_after = conf.momentum * mean + (1 - conf.momentum) * g
        return w - lr * np.sign(0.9 * mean + 0.1 * g), {"mean": mean_after}


class Doubled(Lion):
    def change(self, lr, w, g, slots, t, s):
        super().change(2 * lr, w, g, slots, t, s)


class NotInPlace(Lion):
    def change(self, lr, w, g, slots, t, s):
        w = w - lr * g


class WritesGradient(Lion):
    def change(self, lr, w, g, slots, t, s):
        g *= lr
        w -= g


class Remembers(Lion):
    def __init__(self, conf):
        super().__init__(conf)
        self.count = 0

    def change(self, lr, w, g, slots, t, s):
        self.count += 1
        super().change(lr * self.count, w, g, slots, t, s)


class Normalises(Lion):
    def change(self, lr, w, g, slots, t, s):
        super().change(lr, w, g / np.abs(g).max(initial=1), slots, t, s)


@pytest.fixture
def conf() -> Iterator[object]:
    """Register a class for the time of a test, and return a configuration that names it."""

    def conf(cls: type[Updater]) -> UpdaterConf:
        registry.register("updater", cls.__name__)(cls)
        return conf_of(cls.__name__)

    with restored_registry():
        yield conf


FAULTS: list[tuple[type[Updater], str, type[Exception], str]] = [
    (Doubled, "the_update_follows_the_formula", AssertionError, "param after step 0"),
    (NotInPlace, "param_and_state_change_in_place_in_float32", AssertionError, "in place, as by w -="),
    (WritesGradient, "param_and_state_change_in_place_in_float32", ValueError, "read-only"),
    (Remembers, "training_can_be_resumed", AssertionError, "param"),
    (Normalises, "a_slice_of_a_param_gets_the_bits_of_the_whole", AssertionError, "param"),
]


@pytest.mark.parametrize(("cls", "check", "error", "message"), FAULTS)
def test_a_fault_is_found(conf, monkeypatch, cls, check, error, message):
    more = [monkeypatch] if check.startswith("a_slice") else []
    refused(lambda: getattr(TestLion(), f"test_{check}")(conf(cls), *more), message, error=error)
