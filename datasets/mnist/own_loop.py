"""The perceptron trained in a loop of one's own: python own_loop.py EPOCHS, where the stores are."""

import sys

import numpy as np
from mlp import mlp

from dsinga import nn
from dsinga.data import open_store


def train(x, y, model, epochs, batch_size=64):
    """Return params after going ``epochs`` times through numpy arrays in random order."""
    net = nn.LocalNet(model.job(train_steps=1), x, y)
    params, updater = net.initial_params(), net.updater()
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x), batch_size):
            rows = order[start : start + batch_size]
            gradients, metrics = net.backward(params, x[rows], y[rows])
            updater.step(params, gradients)
        print(epoch + 1, metrics)
    return params


if __name__ == "__main__":
    (x, y), (x_test, y_test) = (
        store.read(np.arange(len(store))) for store in map(open_store, ("train_data.zarr", "test_data.zarr"))
    )
    model = mlp()
    model.params = train(x, y, model, int(sys.argv[1]))
    print(model.evaluate(x_test, y_test))
