"""Measure TensorFlow on a case, with a tf.function: ``python -m tools.benchmarks.tensorflow_peer CASE STEPS``.

With BENCHMARK_COMPILED in the environment it compiles by XLA, with BENCHMARK_BF16 it computes the forward and backward
pass in bfloat16 from float32 variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

from tools.benchmarks.cases import CASES
from tools.benchmarks.nets import NETS
from tools.benchmarks.timing import BF16, COMPILED, print_turns

DTYPE = tf.bfloat16 if BF16 else tf.float32
Layer = Callable[[tf.Tensor], tf.Tensor]


class Builder:
    """Makes layers for inputs of a shape, and keeps their variables in the order in which they are made."""

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []

    def variable(self, *shape: int) -> tf.Variable:
        """Return a new variable."""
        self.variables.append(tf.Variable(tf.random.normal(shape, stddev=0.05)))
        return self.variables[-1]

    def normalised(self, inputs: int, filters: int, size: int, stride: int, pad: int) -> Layer:
        """Return a convolution without bias and batch normalisation, which keeps no running statistics."""
        w, gamma, beta = self.variable(size, size, inputs, filters), self.variable(filters), self.variable(filters)
        return lambda x: tf.compat.v1.nn.fused_batch_norm(convolve(x, w, stride, pad), gamma, beta)[0]

    def residual(self, inputs: int, filters: int, stride: int) -> Layer:
        """Return two convolutions with batch normalisation and a shortcut."""
        first, second = self.normalised(inputs, filters, 3, stride, 1), self.normalised(filters, filters, 3, 1, 1)
        shortcut = self.normalised(inputs, filters, 1, stride, 0) if stride > 1 else tf.identity
        return lambda x: tf.nn.relu(second(tf.nn.relu(first(x))) + shortcut(x))

    def layer(self, inputs: int, kind: str, *numbers: float) -> Layer:
        """Return a layer of :class:`tools.benchmarks.nets.Net` for so many channels or features of a record."""
        match kind, *numbers:
            case "convolution", filters, size, stride, pad:
                w, b = self.variable(size, size, inputs, filters), self.variable(filters)
                return lambda x: tf.nn.bias_add(convolve(x, w, stride, pad), cast(b))
            case "normalised", *sizes:
                layer = self.normalised(inputs, *sizes)
                return lambda x: tf.nn.relu(layer(x))
            case "residual", filters, stride:
                return self.residual(inputs, filters, stride)
            case "dense", outputs:
                w, b = self.variable(inputs, outputs), self.variable(outputs)
                return lambda x: tf.nn.bias_add(x @ cast(w), cast(b))
            case "max", size, stride:
                return lambda x: tf.nn.max_pool2d(x, size, stride, "VALID")
            case "mean", size, stride:
                return lambda x: tf.nn.avg_pool2d(x, size, stride, "VALID")
            case "lrn", size, alpha:
                return lambda x: lrn(x, size, alpha)
            case "dropout", share:
                return lambda x: tf.nn.dropout(x, share)
        plain = {
            "relu": tf.nn.relu,
            "tanh": lambda x: 1.7159047 * tf.tanh(0.66666667 * x),
            "global mean": lambda x: tf.reduce_mean(x, (1, 2)),
            "flatten": lambda x: tf.reshape(x, (x.shape[0], -1)),
        }
        return plain[kind]


def cast(variable: tf.Variable) -> tf.Tensor:
    """Return a variable in the dtype of the computation."""
    return tf.cast(variable, DTYPE)


def convolve(x: tf.Tensor, w: tf.Variable, stride: int, pad: int) -> tf.Tensor:
    """Return the convolution of images with filters."""
    return tf.nn.conv2d(x, cast(w), stride, [[0, 0], [pad, pad], [pad, pad], [0, 0]])


def lrn(x: tf.Tensor, size: int, alpha: float) -> tf.Tensor:
    """Return images divided by a power of the squares of neighbouring channels, computed in float32."""
    return tf.cast(
        tf.nn.local_response_normalization(tf.cast(x, tf.float32), size // 2, 1.0, alpha / size, 0.75), DTYPE
    )


def train(name: str, steps: int) -> None:
    """Print the figures of a case, turn by turn."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    case, builder = CASES[name], Builder()
    net = NETS[case.net]
    channels, height, width = net.record
    images = tf.cast(tf.random.uniform((case.batch, height, width, channels), 0, 256, tf.int32), tf.uint8)
    labels = tf.random.uniform((case.batch,), 0, net.classes, tf.int32)
    layers, x = [], tf.cast(images[:1], DTYPE)
    for row in net.layers:
        layers.append(builder.layer(x.shape[-1], *row))
        x = layers[-1](x)
    variables = builder.variables
    histories = [tf.Variable(tf.zeros_like(variable)) for variable in variables] if net.momentum else []

    @tf.function(jit_compile=COMPILED)
    def iterate() -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.cast(images, DTYPE)
            for layer in layers:
                x = layer(x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(x, tf.float32)))
        for k, (variable, gradient) in enumerate(zip(variables, tape.gradient(loss, variables), strict=True)):
            if histories:
                histories[k].assign(net.momentum * histories[k] - net.rate * (gradient + net.decay * variable))
                variable.assign_add(histories[k])
            else:
                variable.assign_sub(net.rate * gradient)
        return loss

    print_turns(lambda: iterate().numpy(), steps)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
