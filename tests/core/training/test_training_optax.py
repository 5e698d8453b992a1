"""Updaters give the params of optax 0.2.8."""

import numpy as np
import pytest

from dsinga import nn
from dsinga.job import UpdaterConf
from dsinga.ops import SparseRows
from dsinga.training import create_updater

VALUE, *GRADIENTS = np.random.default_rng(7).normal(size=(4, 4)).astype(np.float32)


DECAY = {"weight_decay": 0.3, "decoupled_weight_decay": True}


OPTAX = {
    # chain(trace(0.9), add_decayed_weights(0.3), scale(-0.1)), then the same with trace(0.9, nesterov=True)
    "sgd": (nn.SGD(0.1, 0.9, **DECAY), [0.201924995, 0.741930723, -0.35465458, -1.300746322]),
    "nesterov": (nn.SGD(0.1, 0.9, True, **DECAY), [0.26182732, 0.94154024, -0.394457370, -1.48220289]),
    # lion(0.1, 0.8, 0.95, weight_decay=0.3)
    "lion": (nn.Lion(0.1, 0.8, 0.95, **DECAY), [0.292212725, 0.563746989, -0.541288257, -1.103909135]),
    # adamw(0.1, 0.8, 0.95, eps=0.01, weight_decay=0.3)
    "adamw": (nn.AdamW(0.1, 0.8, 0.95, 0.01, weight_decay=0.3), [0.248196855, 0.554226398, -0.466355771, -1.06916821]),
    # lamb(0.1, 0.8, 0.95, eps=0.01, weight_decay=0.3)
    "lamb": (nn.Lamb(0.1, 0.8, 0.95, 0.01, weight_decay=0.3), [0.17274728, 0.48313594, -0.40773904, -1.0177875]),
}


# contrib.muon(0.1, beta=0.8, weight_decay=0.3, consistent_rms=0.2) of matrices of normal(size=(4, *shape))
MUON = {
    (3, 5): [
        [0.032062642, 0.3050863, -0.20957132, -0.7449531, -0.42231572],
        [-0.83737236, 0.093155175, 1.2292689, -0.4509426, -0.5729539],
        [0.4475347, 0.38521078, 0.110782996, -0.90139496, -0.08485351],
    ],
    (5, 3): [
        [0.032195248, 0.33653542, -0.21223645],
        [-0.7340061, -0.45616528, -0.8692433],
        [0.08161248, 1.2338017, -0.46672434],
        [-0.57398766, 0.43198946, 0.40123218],
        [0.12410314, -0.8797625, -0.04838412],
    ],
}


@pytest.mark.parametrize("name", OPTAX)
def test_updates_are_those_of_optax(name: str) -> None:
    conf, expected = OPTAX[name]
    updater, value = create_updater(conf), VALUE.copy()
    state = updater.create_state(value.size)
    for step, gradient in enumerate(GRADIENTS):
        updater.update(step, value, gradient, state)
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", MUON)
def test_muon_of_a_matrix_is_that_of_optax(shape: tuple[int, int]) -> None:
    value, *gradients = np.random.default_rng(7).normal(size=(4, *shape)).astype(np.float32)
    updater = create_updater(nn.Muon(0.1, beta=0.8, weight_decay=0.3)).of("w", shape)
    state = updater.create_state(value.size)
    assert list(state) == ["mean"]
    for step, gradient in enumerate(gradients):
        updater.update(step, value.reshape(-1), gradient.reshape(-1), state, shape=shape)
    np.testing.assert_allclose(value, MUON[shape], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "shape"), [("b", (6,)), ("filters", (2, 3, 1)), ("embedding_table", (3, 2))])
def test_muon_leaves_other_params_to_adamw(name: str, shape: tuple[int, ...]) -> None:
    muon = nn.Muon(0.1, weight_decay=0.3, adamw_match=["embed*"], beta_1=0.8)
    results = []
    for conf in (muon, nn.AdamW(0.1, 0.8, weight_decay=0.3, epsilon=muon.delta)):
        updater, value = create_updater(conf), np.ones(6, np.float32)
        updater.set_rate_factors({2: 0.5})
        updater = updater.of(name, shape)
        state = updater.create_state(6)
        for step in range(4):
            updater.update(step, value, np.arange(6, dtype=np.float32), state, shape=shape)
        results.append(value)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("conf", [nn.Lamb(0.1, weight_decay=0.3), nn.Muon(0.1)])
def test_updaters_of_whole_params_take_sparse_gradients_as_dense(conf: UpdaterConf) -> None:
    updater, gradient = create_updater(conf), np.arange(6, dtype=np.float32).reshape(2, 3)
    sparse = SparseRows(np.array([0, 2]), gradient, (4, 3))
    ends = []
    for g in (sparse, sparse.dense().reshape(-1)):
        value = np.linspace(-1, 1, 12, dtype=np.float32)
        updater.update(0, value, g, updater.create_state(12), shape=(4, 3))
        ends.append(value)
    np.testing.assert_array_equal(*ends)


def test_lamb_moves_params_that_are_zero() -> None:
    """Where a norm is 0, the ratio is 1."""
    updater, value = create_updater(nn.Lamb(0.1, epsilon=1e-12)), np.zeros(2, np.float32)
    updater.update(0, value, np.array([1, -2], np.float32), updater.create_state(2))
    np.testing.assert_allclose(value, [-0.1, 0.1], rtol=1e-6)


def test_a_decoupled_decay_follows_the_rate_and_the_scale_of_the_param() -> None:
    """Without a gradient, w is multiplied by 1 - lr·lr_scale·weight_decay·wd_scale of each step."""
    conf = nn.SGD(nn.ExponentialDecay(0.1, 1, 0.5), **DECAY)
    updater, value = create_updater(conf), np.ones(3, np.float32)
    for step in range(2):
        updater.update(step, value, np.zeros(3, np.float32), {}, lr_scale=2.0, wd_scale=0.5)
    np.testing.assert_allclose(value, (1 - 0.2 * 0.15) * (1 - 0.1 * 0.15), rtol=1e-6)


def test_a_param_may_be_left_out_of_a_decoupled_decay() -> None:
    conf = nn.AdamW(0.1, weight_decay=0.3, param_settings=[nn.ParamSettings("*_bias", weight_decay=0.0)])
    ends = []
    for name in ("ip_weight", "ip_bias"):
        updater, value = create_updater(conf).of(name), np.ones(3, np.float32)
        updater.update(0, value, np.zeros(3, np.float32), updater.create_state(3))
        ends.append(float(value[0]))
    assert ends == [pytest.approx(1 - 0.03), 1.0]
