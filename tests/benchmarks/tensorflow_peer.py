"""Measure TensorFlow on a case, with a tf.function: ``python -m tests.benchmarks.tensorflow_peer CASE STEPS``."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

from tests.benchmarks.cases import CASES
from tests.benchmarks.nets import NETS

WARM_UP = 10
Layer = Callable[[tf.Tensor], tf.Tensor]


class Builder:
    """Makes layers for inputs of a shape, and keeps their variables in the order in which they are made."""

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []

    def variable(self, *shape: int) -> tf.Variable:
        """Return a new variable."""
        self.variables.append(tf.Variable(tf.random.normal(shape, stddev=0.05)))
        return self.variables[-1]

    def layer(self, inputs: int, kind: str, *numbers: float) -> Layer:
        """Return a layer of :class:`tests.benchmarks.nets.Net` for so many channels or features of a record."""
        match kind, *numbers:
            case "convolution", filters, size, stride, pad:
                w, b = self.variable(size, size, inputs, filters), self.variable(filters)
                padding = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
                return lambda x: tf.nn.bias_add(tf.nn.conv2d(x, w, stride, padding), b)
            case "dense", outputs:
                w, b = self.variable(inputs, outputs), self.variable(outputs)
                return lambda x: tf.nn.bias_add(x @ w, b)
            case "max", size, stride:
                return lambda x: tf.nn.max_pool2d(x, size, stride, "VALID")
            case "mean", size, stride:
                return lambda x: tf.nn.avg_pool2d(x, size, stride, "VALID")
            case "lrn", size, alpha:
                return lambda x: tf.nn.local_response_normalization(x, size // 2, 1.0, alpha / size, 0.75)
            case "dropout", share:
                return lambda x: tf.nn.dropout(x, share)
        plain = {
            "relu": tf.nn.relu,
            "tanh": lambda x: 1.7159047 * tf.tanh(0.66666667 * x),
            "flatten": lambda x: tf.reshape(x, (x.shape[0], -1)),
        }
        return plain[kind]


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the median milliseconds of an iteration of a case and the peak megabytes of this process."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    case, builder = CASES[name], Builder()
    net = NETS[case.net]
    channels, height, width = net.record
    images = tf.cast(tf.random.uniform((case.batch, height, width, channels), 0, 256, tf.int32), tf.uint8)
    labels = tf.random.uniform((case.batch,), 0, net.classes, tf.int32)
    layers, x = [], tf.cast(images[:1], tf.float32)
    for row in net.layers:
        layers.append(builder.layer(x.shape[-1], *row))
        x = layers[-1](x)
    variables = builder.variables
    histories = [tf.Variable(tf.zeros_like(variable)) for variable in variables] if net.momentum else []

    @tf.function
    def iterate() -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.cast(images, tf.float32)
            for layer in layers:
                x = layer(x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))
        for k, (variable, gradient) in enumerate(zip(variables, tape.gradient(loss, variables), strict=True)):
            if histories:
                histories[k].assign(net.momentum * histories[k] - net.rate * (gradient + net.decay * variable))
                variable.assign_add(histories[k])
            else:
                variable.assign_sub(net.rate * gradient)
        return loss

    seconds = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        iterate().numpy()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": 1e3 * statistics.median(seconds[WARM_UP:]), "mb": peak}


if __name__ == "__main__":
    print(json.dumps(turn(sys.argv[1], int(sys.argv[2]))))
