"""Optimizers and schedules by the names of Keras: the updaters that they make, and the values that follow."""

import numpy as np
import pytest

from dsinga import nn
from dsinga.job.message import set_fields
from dsinga.nn.optimizers import updater_conf
from dsinga.training import create_updater


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


def test_schedules_have_a_floor_and_a_start():
    for bounded in (
        nn.ExponentialDecay(0.1, 10, 0.5, minimum_lr=0.01, start_step=8),
        nn.ExponentialDecay(0.1, 10, 0.5, staircase=True, minimum_lr=0.01, start_step=8),
        nn.InverseTimeDecay(0.1, 1, 1, minimum_lr=0.01, start_step=8),
        nn.Schedule("kInverse", 0.1, inverse_conf={"gamma": 1, "pow": 2}, minimum_lr=0.01, start_step=8),
    ):
        assert [rate(bounded, step) for step in (0, 7, 1000)] == [0.1, 0.1, 0.01]
        assert rate(bounded, 11) < 0.1


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


def update(optimizer, values: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Return values after updates by training."""
    torch = pytest.importorskip("torch")
    param = torch.nn.Parameter(torch.tensor(values))
    steps = optimizer([param])
    for gradient in gradients:
        param.grad = torch.tensor(gradient)
        steps.step()
    return param.detach().numpy()


def engine(conf, values: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Return values after the updates of a local net's updater."""
    model = nn.Sequential([nn.Input(len(values)), nn.Dense(1, use_bias=False, name="w")])
    model.compile(conf, "mse")
    net = nn.LocalNet(model.job(train_steps=1), np.zeros((1, len(values)), np.float32), np.zeros(1, np.float32))
    params, updater = {"w_weight": values[None].copy()}, net.updater()
    for gradient in gradients:
        updater.step(params, {"w_weight": gradient[None]})
    return params["w_weight"][0]


PAIRS = {
    "sgd": (nn.SGD(0.1), lambda torch, p: torch.optim.SGD(p, 0.1)),
    "momentum": (nn.SGD(0.1, momentum=0.9), lambda torch, p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        nn.SGD(0.1, momentum=0.9, nesterov=True),
        lambda torch, p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (nn.Adam(0.01, epsilon=1e-6), lambda torch, p: torch.optim.Adam(p, 0.01, eps=1e-6)),
    "decay": (nn.SGD(0.1, weight_decay=0.2), lambda torch, p: torch.optim.SGD(p, 0.1, weight_decay=0.2)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, 1])
def test_updates_are_those_of_pytorch(name, seed):
    torch = pytest.importorskip("torch")
    conf, make = PAIRS[name]
    rng = np.random.default_rng(seed)
    values, *gradients = rng.normal(size=(6, 4)).astype(np.float32)
    expected = update(lambda params: make(torch, params), values, gradients)
    np.testing.assert_allclose(engine(conf, values, gradients), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "Adam", "adamax", "rmsprop", "adagrad", "adadelta", "kNesterov"])
def test_an_optimizer_by_name_has_the_defaults(name):
    conf = updater_conf(name)
    create_updater(conf)
    functions = {"sgd": nn.SGD, "adam": nn.Adam, "adamax": nn.Adamax, "rmsprop": nn.RMSprop}
    if name.lower() in functions:
        assert conf == functions[name.lower()]()


def test_clipping_is_a_field_of_the_updater():
    conf = nn.Adam(clip_value=5, clip_norm=1)
    assert (conf.clip_low, conf.clip_high, conf.clip_norm) == (-5, 5, 1)


def test_a_cluster_has_the_fields_of_the_job():
    conf = nn.Cluster(workers=4, groups=2, servers=3, sync_freq=5)
    assert (conf.nworkers_per_group, conf.nworker_groups, conf.nservers_per_group, conf.sync_freq) == (4, 2, 3, 5)
