"""A stack of Boltzmann machines and its auto-encoder in Python: python autoencoder.py EPOCHS, where the stores are.

The machines, one after the other, learn from the features of those below; the auto-encoder starts from their params.
"""

import sys

from dsinga import nn


def machine(number, units, last):
    return nn.RBM(units, gaussian=last, name=f"rbm{number}")


def pretrained(data, sizes=(784, 400, 100, 2), **fit):
    """Return the machines of a stack, and the params that they have learned."""
    below, params, machines = [nn.Input(sizes[0]), nn.Rescaling(1 / 255)], {}, []
    for number, units in enumerate(sizes[1:], 1):
        last = number == len(sizes) - 1
        machines.append(machine(number, units, last))
        model = nn.Sequential([*below, machines[-1]], name=f"rbm{number}")
        model.compile(nn.SGD(0.001 if last else 0.1, momentum=0.8, weight_decay=0.0002), algorithm=nn.CD(1))
        model.params = params
        model.fit(data, **fit)
        params = model.params
        below.append(nn.encoder(machines[-1]))
    return machines, params


def autoencoder(machines, sizes=(784, 400, 100, 2)):
    """Return the auto-encoder of a stack, whose decoder has the weights of the encoder, transposed."""
    x = nn.Input(sizes[0])
    h = scaled = nn.Rescaling(1 / 255)(x)
    for layer in machines:
        h = nn.encoder(layer)(h)
    for layer, units in zip(reversed(machines), reversed(sizes[:-1]), strict=True):
        h = nn.decoder(layer, units)(h)
    model = nn.Model(x, h, name="autoencoder")
    model.compile(nn.Adagrad(0.01), nn.EuclideanLoss(name="loss")(h, scaled))
    return model


if __name__ == "__main__":
    epochs = int(sys.argv[1])
    machines, params = pretrained("train_data.zarr", epochs=epochs, batch_size=100)
    model = autoencoder(machines)
    model.params = params
    model.fit("train_data.zarr", validation_data="test_data.zarr", epochs=epochs, batch_size=100)
    codes = model.features("test_data.zarr", "rbm3_encoder")
    print(model.evaluate("test_data.zarr"), codes.shape)
