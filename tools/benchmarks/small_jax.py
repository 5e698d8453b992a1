"""Measure a jitted JAX step on a small net: ``python -m tools.benchmarks.small_jax CASE STEPS``.

Forward, backward and update are one compiled function with donated params, and the loss of each step is read. The
compiled function takes batches from shuffled arrays in memory, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tools.benchmarks import small_nets
from tools.benchmarks.jax_peer import Builder, Layer, Params, cross_entropy, jax
from tools.benchmarks.small_nets import CLIP, Rows, Seconds, SmallCase, repeated

Array, lax, nn, jnp = jax.Array, jax.lax, jax.nn, jax.numpy
Net = Callable[[Params, Array], Array]


class SmallBuilder(Builder):
    """Makes the layers of small nets."""

    def layer(self, inputs: int, kind: str, *numbers: float) -> Layer:
        """Return a layer for so many channels or features of a record."""
        if kind == "tanh":
            return lambda p, x, key: jnp.tanh(x)
        return self.gru(inputs, int(numbers[0])) if kind == "gru" else super().layer(inputs, kind, *numbers)

    def gru(self, inputs: int, units: int) -> Layer:
        """Return a GRU that gives its last hidden state (B, units) for sequences (B, T, inputs)."""
        w, u, b, c = (self.param(*shape) for shape in ((inputs, 3 * units), (units, 3 * units), *[(3 * units,)] * 2))

        def apply(p: Params, x: Array, key: Any) -> Array:
            def step(h: Array, gates: Array) -> tuple[Array, None]:
                (xr, xz, xn), (hr, hz, hn) = (jnp.split(part, 3, 1) for part in (gates, h @ p[u] + p[c]))
                z, n = nn.sigmoid(xz + hz), jnp.tanh(xn + nn.sigmoid(xr + hr) * hn)
                return (1 - z) * n + z * h, None

            return lax.scan(step, jnp.zeros((len(x), units)), jnp.swapaxes(x @ p[w] + p[b], 0, 1))[0]

        return apply

    def net(self, layers: Rows, record: tuple[int, ...]) -> Net:
        """Return a net for records of a shape, with channels last."""
        made, x = [], jnp.zeros((1, *record))
        for row in layers:
            made.append(self.layer(x.shape[-1], *row))
            x = made[-1](self.params, x, None)

        def apply(params: Params, x: Array) -> Array:
            for layer in made:
                x = layer(params, x, None)
            return x

        return apply


def updated(case: SmallCase, params: Params, state: Params, gradients: Params) -> tuple[Params, Params]:
    """Return params and state after an update; the state has the step, then the moments of all params."""
    rate, steps, moments = small_nets.RATES[case.updater], state[0] + 1, state[1:]
    if case.updater == "sgd":
        moments = [small_nets.MOMENTUM * m + g for m, g in zip(moments, gradients, strict=True)]
        return [w - rate * m for w, m in zip(params, moments, strict=True)], [steps, *moments]
    first = [0.9 * m + 0.1 * g for m, g in zip(moments[: len(params)], gradients, strict=True)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(moments[len(params) :], gradients, strict=True)]
    scale = rate * jnp.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
    changed = [w - scale * m / (jnp.sqrt(v) + 1e-8) for w, m, v in zip(params, first, second, strict=True)]
    return changed, [steps, *first, *second]


def stepper(case: SmallCase, params: Params, loss: Callable[..., Array], limit: float = 0.0) -> Callable[..., float]:
    """Return a function of a batch that does a step of the updater, and returns the loss."""
    state = [jnp.zeros(()), *(jnp.zeros_like(param) for param in params * (2 if case.updater == "adam" else 1))]

    @partial(jax.jit, donate_argnums=(0, 1))
    def compiled(params: Params, state: Params, *batch: Any) -> tuple[Params, Params, Array]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        if limit:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
            gradients = [g * jnp.minimum(1, limit / norm) for g in gradients]
        return *updated(case, params, state, gradients), value

    def step(*batch: Any) -> float:
        nonlocal params, state
        params, state, value = compiled(params, state, *batch)
        return float(value)

    return step


def fit(case: SmallCase, steps: int) -> Seconds:
    """Return the function that trains on shuffled records."""
    x, y = small_nets.records(case, steps)
    x = np.moveaxis(x, 1, -1) if x.ndim == 4 else x
    data, rng, builder = (jnp.asarray(x), jnp.asarray(y, jnp.int32)), np.random.default_rng(0), SmallBuilder()
    net = builder.net(case.layers, x.shape[1:])
    step = stepper(case, builder.params, lambda p, x, y, rows: cross_entropy(net(p, x[rows]), y[rows]))

    def seconds(steps: int) -> float:
        started = time.process_time()
        for rows in rng.permutation(steps * case.batch).astype(np.int32).reshape(steps, -1):
            step(*data, rows)
        return time.process_time() - started

    return seconds


def dqn(case: SmallCase, _: int) -> Seconds:
    """Return the function that does updates of DQN by a batch of arrays."""
    builder, target, batch = SmallBuilder(), SmallBuilder(), small_nets.transitions(case.batch)
    net, target_net = (each.net(case.layers, case.record) for each in (builder, target))

    def loss(params: Params, target: Params, batch: dict[str, Array]) -> Array:
        following = target_net(target, batch["next_observations"]).max(1)
        targets = batch["rewards"] + batch["discounts"] * following * ~batch["terminated"]
        values = jnp.take_along_axis(net(params, batch["observations"]), batch["actions"][:, None], 1)[:, 0]
        error = jnp.abs(values - targets)
        return (batch["weights"] * jnp.where(error < 1, 0.5 * error * error, error - 0.5)).mean()

    step = stepper(case, builder.params, loss)
    return repeated(lambda: step(target.params, batch))


def ppo(case: SmallCase, _: int) -> Seconds:
    """Return the function that does updates of PPO by a minibatch of arrays."""
    builder, batch = SmallBuilder(), small_nets.minibatch(case.batch)
    policy, value = (builder.net(layers, case.record) for layers in (case.layers, small_nets.VALUE))

    def loss(params: Params, observations: Array, actions: Array, gain: Array, returns: Array, logs: Array) -> Array:
        new = jnp.take_along_axis(nn.log_softmax(policy(params, observations)), actions[:, None], 1)[:, 0]
        ratio = jnp.exp(new - logs)
        clipped = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain)
        error = jnp.square(value(params, observations)[:, 0] - returns)
        return small_nets.VALUE_SCALE * error.mean() - clipped.mean()

    step = stepper(case, builder.params, loss, small_nets.LARGEST_NORM)
    return repeated(lambda: step(*batch.values()))


def act(case: SmallCase, _: int) -> Seconds:
    """Return the function that asks for the best action for an observation."""
    builder, observation = SmallBuilder(), np.zeros(case.record, np.float32)
    net = builder.net(case.layers, case.record)
    best = jax.jit(lambda params, observation: net(params, observation[None]).argmax())
    return repeated(lambda: int(best(builder.params, observation)))


if __name__ == "__main__":
    small_nets.measure({"fit": fit, "job": fit, "dqn": dqn, "ppo": ppo, "act": act})
