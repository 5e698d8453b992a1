"""Optimizers and schedules by the names of Keras: the updaters that they make, and the values that follow."""

import inspect

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.base.registry import register, unregister
from dsinga.job import Settings, required, setting
from dsinga.job.limits import Count, Share
from dsinga.job.message import set_fields
from dsinga.nn.words.optimizers import OPTIMIZERS, updater_conf
from dsinga.training import Updater, create_updater
from dsinga.training.schedules import Schedule


def rate(schedule, step: int) -> float:
    """Return the learning rate of a schedule at a step, as training computes it."""
    return create_updater(nn.SGD(schedule)).rate(step)


def test_the_rates_are_those_of_the_formulas_of_keras():
    for step in (0, 1, 99, 100, 101, 250):
        assert rate(0.5, step) == 0.5
        smooth = nn.ExponentialDecay(0.1, 100, 0.9)
        assert rate(smooth, step) == pytest.approx(0.1 * 0.9 ** (step / 100))
        stairs = nn.ExponentialDecay(0.1, 100, 0.3, staircase=True)
        assert rate(stairs, step) == pytest.approx(0.1 * 0.3 ** (step // 100))
        assert rate(nn.InverseTimeDecay(0.1, 50, 0.2), step) == pytest.approx(0.1 / (1 + 0.2 * step / 50))
        stairs = nn.InverseTimeDecay(0.1, 50, 0.2, staircase=True)
        assert rate(stairs, step) == pytest.approx(0.1 / (1 + 0.2 * (step // 50)))
        pieces = nn.PiecewiseConstantDecay([100, 200], [1.0, 0.5, 0.1])
        assert rate(pieces, step) == (1.0 if step <= 100 else 0.5 if step <= 200 else 0.1)
    assert rate(nn.Schedule("kInverse", 0.1, inverse_conf={"gamma": 1, "pow": 2}), 3) == pytest.approx(0.1 / 16)


def test_a_momentum_moves_and_some_params_have_settings_of_their_own():
    moving = nn.LinearMomentum(0.5, 0.9, saturation_step=40)
    biases = nn.ParamSettings("*_bias", learning_rate=0.2, momentum=0.0, weight_decay=0, clip_value=3)
    tables = nn.ParamSettings("table*", learning_rate=nn.ExponentialDecay(0.3, 5, 0.5), momentum=moving, clip_norm=2)
    conf = nn.SGD(0.1, moving, nesterov=True, weight_decay=1e-4, param_settings=[biases, tables])
    assert set_fields(conf.momentum_conf) == {"saturation_step": 40}  # the others are the defaults of the job
    assert conf.momentum == 0
    assert set_fields(conf.param_settings[0]) == {
        "match": "*_bias",
        "base_lr": 0.2,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "clip_low": -3.0,
        "clip_high": 3.0,
    }
    assert (tables.learning_rate.base_lr, tables.momentum_conf, tables.clip_norm) == (0.3, moving, 2.0)
    for optimizer in (nn.Adam, nn.Adamax, nn.RMSprop, nn.Adagrad, nn.Adadelta):
        assert optimizer(param_settings=[biases]).param_settings == [biases]


PAIRS = {
    "sgd": (nn.SGD(0.1, weight_decay=0.05), lambda o, p: o.SGD(p, lr=0.1, weight_decay=0.05)),
    "momentum": (nn.SGD(0.1, 0.9, weight_decay=0.05), lambda o, p: o.SGD(p, 0.1, 0.9, weight_decay=0.05)),
    "nesterov": (nn.SGD(0.1, momentum=0.9, nesterov=True), lambda o, p: o.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "adagrad": (nn.Adagrad(0.1, epsilon=1e-20), lambda o, p: o.Adagrad(p, lr=0.1, eps=1e-10)),
    "rmsprop": (nn.RMSprop(0.1, rho=0.8, epsilon=1e-20), lambda o, p: o.RMSprop(p, lr=0.1, alpha=0.8, eps=1e-10)),
    "centred": (nn.RMSprop(0.1, 0.8, 1e-20, centered=True), lambda o, p: o.RMSprop(p, 0.1, 0.8, 1e-10, centered=True)),
    "adadelta": (nn.Adadelta(0.1, rho=0.7, epsilon=1e-6), lambda o, p: o.Adadelta(p, lr=0.1, rho=0.7, eps=1e-6)),
    "adam": (nn.Adam(0.1, 0.8, 0.9, 0.01, weight_decay=0.1), lambda o, p: o.Adam(p, 0.1, (0.8, 0.9), 0.01, 0.1)),
    "adamw": (nn.AdamW(0.1, 0.8, 0.9, 0.01, weight_decay=0.1), lambda o, p: o.AdamW(p, 0.1, (0.8, 0.9), 0.01, 0.1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_updates_are_those_of_pytorch(name):
    """At a constant rate: torch scales the momentum by the newest rate, SINGA by the rate of each step."""
    torch = pytest.importorskip("torch")
    conf, make = PAIRS[name]
    value, *gradients = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    tensor, updater = torch.nn.Parameter(torch.tensor(value)), create_updater(conf)
    peer, state = make(torch.optim, [tensor]), updater.create_state(50)
    for step, gradient in enumerate(gradients):
        tensor.grad = torch.tensor(gradient)
        peer.step()
        updater.update(step, value, gradient, state)
        np.testing.assert_allclose(value, tensor.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Lion"])
def test_an_optimizer_by_name_has_the_defaults(name):
    assert updater_conf(name) == updater_conf(name.lower()) == getattr(nn, name)()
    create_updater(updater_conf("kNesterov"))


def test_updaters_and_schedules_of_the_users_own_have_functions():
    @register("updater", "Shrinking")
    class Shrinking(Updater):
        class Conf(Settings):
            beta1: Share = required("the share that is left")

        def change(self, lr, w, g, slots, t, s):
            w *= self.settings.beta1

    @register("schedule", "Halving")
    class Halving(Schedule):
        class Conf(Settings):
            change_freq: Count = setting(1, "every how many steps")

        def __call__(self, step):
            return self.base / 2 ** (step // self.settings.change_freq)

    try:
        conf = nn.Shrinking(0.25, nn.Halving(0.4, 3, minimum_lr=0.15), weight_decay=0.5)
        assert [create_updater(conf).rate(step) for step in (0, 3, 9)] == [0.4, 0.2, 0.15]
        assert (conf.type_name, conf.shrinking_conf.beta1, conf.weight_decay) == ("Shrinking", 0.25, 0.5)
        for call, message in (
            (lambda: nn.Shrinking(), "Shrinking: missing a required argument: 'beta_1'"),
            (lambda: nn.Shrinking(2.0), r"Shrinking: beta_1 must be in \[0, 1\), not 2"),
            (lambda: nn.Halving(), "Halving: missing a required argument: 'initial_learning_rate'"),
            (lambda: nn.Halving(0.1, decay_stps=3), "Halving has no argument 'decay_stps'; did you mean 'decay_steps'"),
        ):
            with pytest.raises(UserError, match=message):
                create_updater(call())
    finally:
        unregister("updater", "Shrinking")
        unregister("schedule", "Halving")


def test_optimizers_have_the_settings_of_the_job_or_of_keras_and_explain_all_arguments():
    for make in OPTIMIZERS:
        assert all(f"\n    {name}: " in make.__doc__ for name in inspect.signature(make).parameters)
        settings = [value for name, value in set_fields(make()).items() if name.endswith("_conf")]
        assert all(set_fields(conf).keys() <= {"bias_correction", "rho"} for conf in settings)
    conf = nn.Lion(0.002, beta_1=0.8, beta_2=0.95, weight_decay=0.1)
    assert (conf.type.name, conf.learning_rate.base_lr, conf.weight_decay) == ("kLion", 0.002, 0.1)
    assert (conf.lion_conf.beta1, conf.lion_conf.beta2) == (0.8, 0.95)


def test_a_cosine_warms_up_as_in_keras():
    """Keras's formula from an initial rate of 0, to the target 0.4."""
    conf = nn.CosineDecay(0.4, 20, alpha=0.5, warmup_steps=10)
    assert nn.CosineDecay(0.0, 20, warmup_target=0.4, alpha=0.5, warmup_steps=10) == conf
    for step in (0, 3, 9, 10, 17, 30, 99):
        decayed = 0.5 * 0.4 * (1 + np.cos(np.pi * min((step - 10) / 20, 1)))
        assert rate(conf, step) == pytest.approx(0.4 * step / 10 if step < 10 else 0.5 * decayed + 0.2)


def test_clipping_is_a_field_of_the_updater():
    conf = nn.Adam(clip_value=5, clip_norm=1)
    assert (conf.clip_low, conf.clip_high, conf.clip_norm) == (-5, 5, 1)


def test_a_cluster_has_the_fields_of_the_job():
    conf = nn.Cluster(workers=4, groups=2, servers=3, sync_freq=5)
    assert (conf.nworkers_per_group, conf.nworker_groups, conf.nservers_per_group, conf.sync_freq) == (4, 2, 3, 5)
