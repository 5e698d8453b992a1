"""Measure JAX on a case, jitted, with donated params: ``python -m tools.benchmarks.jax_peer CASE STEPS``.

With BENCHMARK_BF16 in the environment it computes the forward and backward pass in bfloat16 from float32 params.
Batch normalisation keeps no running statistics.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
import jax
from jax import Array, lax, nn
from jax import numpy as jnp

from tools.benchmarks.cases import CASES
from tools.benchmarks.nets import NETS
from tools.benchmarks.timing import BF16, print_turns

DTYPE = jnp.bfloat16 if BF16 else jnp.float32
Params = list[Array]
Layer = Callable[[Params, Array, Array], Array]  # of params, features and a random key
VOCABULARY, HIDDEN, UNROLLED = 101, 512, 50  # of char-rnn


def window(x: Array, initial: float, combine: Any, size: int, stride: int) -> Array:
    """Return the images (N, H, W, C) with each window reduced by an operator."""
    return lax.reduce_window(
        x, np.asarray(initial, x.dtype), combine, (1, size, size, 1), (1, stride, stride, 1), "VALID"
    )


def lrn(size: int, alpha: float, x: Array) -> Array:
    """Return images divided by (1 + α/size · the sum of squares of neighbouring channels)^0.75."""
    pad = [(0, 0), (0, 0), (0, 0), (size // 2, size // 2)]
    squares = lax.reduce_window(x * x, np.asarray(0, x.dtype), lax.add, (1, 1, 1, size), (1, 1, 1, 1), pad)
    return x * (1 + alpha / size * squares) ** -0.75


class Builder:
    """Makes layers for inputs of a shape, and keeps their params in the order in which they are made."""

    def __init__(self) -> None:
        self.params: Params = []
        self.numbers = np.random.default_rng(0)

    def param(self, *shape: int, scale: float = 0.05, mean: float = 0.0) -> int:
        """Return the number of a new param."""
        self.params.append(jnp.asarray(mean + scale * self.numbers.normal(size=shape), jnp.float32))
        return len(self.params) - 1

    def normalised(self, inputs: int, filters: int, size: int, stride: int, pad: int) -> Layer:
        """Return a convolution without bias and batch normalisation."""
        w, gamma, beta = self.param(size, size, inputs, filters), self.param(filters, mean=1.0), self.param(filters)

        def apply(p: Params, x: Array, key: Array) -> Array:
            y = convolve(x, p[w], stride, pad).astype(jnp.float32)
            mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
            return ((y - mean) * lax.rsqrt(variance + 1e-5) * p[gamma] + p[beta]).astype(x.dtype)

        return apply

    def residual(self, inputs: int, filters: int, stride: int) -> Layer:
        """Return two convolutions with batch normalisation and a shortcut."""
        first, second = self.normalised(inputs, filters, 3, stride, 1), self.normalised(filters, filters, 3, 1, 1)
        shortcut = self.normalised(inputs, filters, 1, stride, 0) if stride > 1 else lambda p, x, key: x
        return lambda p, x, key: nn.relu(second(p, nn.relu(first(p, x, key)), key) + shortcut(p, x, key))

    def layer(self, inputs: int, kind: str, *numbers: float) -> Layer:
        """Return a layer of :class:`tools.benchmarks.nets.Net` for so many channels or features of a record."""
        match kind, *numbers:
            case "convolution", filters, size, stride, pad:
                w, b = self.param(size, size, inputs, filters), self.param(filters)
                return lambda p, x, key: convolve(x, p[w], stride, pad) + p[b]
            case "normalised", *sizes:
                layer = self.normalised(inputs, *sizes)
                return lambda p, x, key: nn.relu(layer(p, x, key))
            case "residual", filters, stride:
                return self.residual(inputs, filters, stride)
            case "dense", outputs:
                w, b = self.param(inputs, outputs), self.param(outputs)
                return lambda p, x, key: x @ p[w] + p[b]
            case "max", size, stride:
                return lambda p, x, key: window(x, -jnp.inf, lax.max, size, stride)
            case "mean", size, stride:
                return lambda p, x, key: window(x, 0, lax.add, size, stride) / size**2
            case "lrn", size, alpha:
                return lambda p, x, key: lrn(size, alpha, x)
            case "dropout", share:
                return lambda p, x, key: jnp.where(jax.random.bernoulli(key, share, x.shape), 0, x / (1 - share))
        plain: dict[str, Callable[[Array], Array]] = {
            "relu": nn.relu,
            "tanh": lambda x: 1.7159047 * jnp.tanh(0.66666667 * x),
            "global mean": lambda x: x.mean((1, 2)),
            "flatten": lambda x: x.reshape(len(x), -1),
        }
        return lambda p, x, key: plain[kind](x)


def convolve(x: Array, w: Array, stride: int, pad: int) -> Array:
    """Return the convolution of images (N, H, W, C) with filters (height, width, C, F)."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def image_net(name: str, batch: int) -> tuple[Builder, Callable[..., Array], Any, Callable[..., Any]]:
    """Return the params of a net, its loss, random images and labels, and its SGD."""
    net, builder = NETS[name], Builder()
    channels, height, width = net.record
    images = jnp.asarray(builder.numbers.integers(0, 256, (batch, height, width, channels)), jnp.uint8)
    labels = jnp.asarray(builder.numbers.integers(0, net.classes, batch))
    layers, key = [], jax.random.key(0)
    x = images[:1].astype(jnp.float32)
    for row in net.layers:
        layers.append(builder.layer(x.shape[-1], *row))
        x = layers[-1](builder.params, x, key)

    def loss(params: Params, data: tuple[Array, Array], key: Array) -> Array:
        x = data[0].astype(DTYPE)
        for number, layer in enumerate(layers):
            x = layer(params, x, jax.random.fold_in(key, number))
        return cross_entropy(x, data[1])

    def update(params: Params, history: Params, gradients: Params) -> tuple[Params, Params]:
        gradients = [g + net.decay * w for g, w in zip(gradients, params, strict=True)]
        if net.momentum:
            gradients = history = [net.momentum * h + g for h, g in zip(history, gradients, strict=True)]
        return [w - net.rate * g for w, g in zip(params, gradients, strict=True)], history

    return builder, loss, (images, labels), update


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean cross-entropy of logits (N, classes)."""
    logarithms = nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logarithms, labels[:, None], 1).mean()


def char_rnn(batch: int) -> tuple[Builder, Callable[..., Array], Any, Callable[..., Any]]:
    """Return the params of the GRU, its loss, random characters, and RMSProp."""
    builder = Builder()
    w, u, out = (builder.param(rows, columns) for rows, columns in
                 ((VOCABULARY, 3 * HIDDEN), (HIDDEN, 3 * HIDDEN), (HIDDEN, VOCABULARY)))  # fmt: skip
    b, c, out_b = (builder.param(length) for length in (3 * HIDDEN, 3 * HIDDEN, VOCABULARY))
    codes = jnp.asarray(builder.numbers.integers(0, VOCABULARY, (UNROLLED + 1, batch)))

    def loss(p: Params, data: Array, key: Array) -> Array:
        gates = nn.one_hot(data[:-1], VOCABULARY, dtype=DTYPE) @ p[w] + p[b]

        def step(h: Array, x: Array) -> tuple[Array, Array]:
            (xr, xz, xn), (hr, hz, hn) = (jnp.split(part, 3, 1) for part in (x, h @ p[u] + p[c]))
            z, n = nn.sigmoid(xz + hz), jnp.tanh(xn + nn.sigmoid(xr + hr) * hn)
            h = (1 - z) * n + z * h
            return h, h

        h = lax.scan(step, jnp.zeros((batch, HIDDEN), DTYPE), gates)[1]
        return cross_entropy(h.reshape(-1, HIDDEN) @ p[out] + p[out_b], data[1:].reshape(-1))

    def update(params: Params, squares: Params, gradients: Params) -> tuple[Params, Params]:
        gradients = [jnp.clip(g, -5, 5) for g in gradients]
        squares = [0.95 * v + 0.05 * g * g for v, g in zip(squares, gradients, strict=True)]
        changes = (0.002 * g / (jnp.sqrt(v) + 1e-8) for g, v in zip(gradients, squares, strict=True))
        return [w - change for w, change in zip(params, changes, strict=True)], squares

    return builder, loss, codes, update


def train(name: str, steps: int) -> None:
    """Print the figures of a case, turn by turn."""
    case = CASES[name]
    builder, loss, data, update = char_rnn(case.batch) if case.net == "char_rnn" else image_net(case.net, case.batch)
    params, key = builder.params, jax.random.key(1)
    history = [jnp.zeros_like(param) for param in params]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def iterate(params: Params, history: Params, key: Array, data: Any) -> tuple[Params, Params, Array, Array]:
        key, drop = jax.random.split(key)
        computed, gradients = jax.value_and_grad(
            lambda params: loss([param.astype(DTYPE) for param in params], data, drop)
        )(params)
        return *update(params, history, gradients), key, computed

    def iteration() -> None:
        nonlocal params, history, key
        params, history, key, computed = iterate(params, history, key, data)
        jax.block_until_ready((params, computed))

    print_turns(iteration, steps)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
