"""Updaters give the params of optax 0.2.8 after three updates.

The figures are those of optax 0.2.8 with jax 0.10.2, in an environment of its own, by these lines:

    value, *gradients = numpy.random.default_rng(7).normal(size=(4, 4)).astype("float32")
    params, state = jnp.asarray(value), optimizer.init(jnp.asarray(value))
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, updates)

Keras 3 and torch decouple the decay of AdamW in the same way, by the learning rate of the step. dsinga's momentum has
the learning rate inside, optax's outside, which is the same while the rate is constant.
"""

from __future__ import annotations

import numpy as np
import pytest

from dsinga import nn
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
    "adamw": (
        nn.AdamW(0.1, 0.8, 0.95, epsilon=0.01, weight_decay=0.3),
        [0.248196855, 0.554226398, -0.466355771, -1.06916821],
    ),
}


@pytest.mark.parametrize("name", OPTAX)
def test_updates_are_those_of_optax(name: str) -> None:
    conf, expected = OPTAX[name]
    updater, value = create_updater(conf), VALUE.copy()
    state = updater.create_state(value.size)
    for step, gradient in enumerate(GRADIENTS):
        updater.update(step, value, gradient, state)
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)


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
