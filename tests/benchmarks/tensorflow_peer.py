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

WARM_UP = 10
Net = Callable[[tf.Tensor], tf.Tensor]


class Params:
    """The variables of a net, in the order in which it creates them."""

    def __init__(self) -> None:
        self.all: list[tf.Variable] = []

    def make(self, *shape: int) -> tf.Variable:
        """Return a new variable."""
        self.all.append(tf.Variable(tf.random.normal(shape, stddev=0.05)))
        return self.all[-1]

    def convolution(self, size: int, inputs: int, outputs: int, padding: str) -> Net:
        """Return a convolution with bias."""
        w, b = self.make(size, size, inputs, outputs), self.make(outputs)
        return lambda x: tf.nn.bias_add(tf.nn.conv2d(x, w, 1, padding), b)

    def dense(self, inputs: int, outputs: int) -> Net:
        """Return a fully connected layer."""
        w, b = self.make(inputs, outputs), self.make(outputs)
        return lambda x: tf.nn.bias_add(tf.reshape(x, (x.shape[0], -1)) @ w, b)


def cifar10(params: Params) -> Net:
    """Return SINGA's CIFAR-10 convnet."""
    conv1 = params.convolution(5, 3, 32, "SAME")
    conv2 = params.convolution(5, 32, 32, "SAME")
    conv3 = params.convolution(5, 32, 64, "SAME")
    ip1 = params.dense(576, 10)

    def lrn(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.local_response_normalization(x, 1, 1.0, 5e-5 / 3, 0.75)

    def net(x: tf.Tensor) -> tf.Tensor:
        x = lrn(tf.nn.relu(tf.nn.max_pool2d(conv1(x), 3, 2, "VALID")))
        x = lrn(tf.nn.avg_pool2d(tf.nn.relu(conv2(x)), 3, 2, "VALID"))
        return ip1(tf.nn.avg_pool2d(tf.nn.relu(conv3(x)), 3, 2, "VALID"))

    return net


def mnist(params: Params) -> Net:
    """Return SINGA's MNIST convnet."""
    conv1, conv2 = params.convolution(5, 1, 20, "VALID"), params.convolution(5, 20, 50, "VALID")
    ip1, ip2 = params.dense(800, 500), params.dense(500, 10)

    def net(x: tf.Tensor) -> tf.Tensor:
        x = tf.nn.max_pool2d(conv1(x), 2, 2, "VALID")
        return ip2(tf.nn.relu(ip1(tf.nn.max_pool2d(conv2(x), 2, 2, "VALID"))))

    return net


def mlp(params: Params) -> Net:
    """Return SINGA's MNIST perceptron."""
    widths = [784, 2500, 2000, 1500, 1000, 500, 10]
    layers = [params.dense(*pair) for pair in zip(widths, widths[1:], strict=False)]

    def net(x: tf.Tensor) -> tf.Tensor:
        for layer in layers[:-1]:
            x = 1.7159047 * tf.tanh(0.66666667 * layer(x))
        return layers[-1](x)

    return net


NETS = {"cifar10": (cifar10, 32, 3, 0.9, 0.004), "mnist": (mnist, 28, 1, 0.9, 5e-4), "mlp": (mlp, 28, 1, 0.0, 0.0)}


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the median milliseconds of an iteration of a case and the peak megabytes of this process."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    case, params = CASES[name], Params()
    make, size, channels, momentum, decay = NETS[case.net]
    net = make(params)
    histories = [tf.Variable(tf.zeros_like(param)) for param in params.all] if momentum else []
    images = tf.cast(tf.random.uniform((case.batch, size, size, channels), 0, 256, tf.int32), tf.uint8)
    labels = tf.random.uniform((case.batch,), 0, 10, tf.int32)

    @tf.function
    def iterate() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = net(tf.cast(images, tf.float32))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for k, (param, gradient) in enumerate(zip(params.all, tape.gradient(loss, params.all), strict=True)):
            if momentum:
                histories[k].assign(momentum * histories[k] - 0.001 * (gradient + decay * param))
                param.assign_add(histories[k])
            else:
                param.assign_sub(0.001 * gradient)
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
