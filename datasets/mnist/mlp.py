"""The net of mlp.conf in Python: python mlp.py EPOCHS, in the folder of train_data.zarr and test_data.zarr."""

import sys

from dsinga import nn


def mlp(hidden=(2500, 2000, 1500, 1000, 500)):
    uniform = nn.RandomUniform(-0.05, 0.05)

    def dense(number, units):
        params = [nn.Param(f"w{number}", uniform), nn.Param(f"b{number}", uniform)]
        return nn.Dense(units, name=f"fc{number}", param=params)

    layers = [nn.Input(784), nn.Rescaling(1 / 127.5, offset=-1)]
    for number, units in enumerate(hidden, 1):
        layers += [dense(number, units), nn.Activation("stanh", name=f"tanh{number}")]
    model = nn.Sequential([*layers, dense(len(hidden) + 1, 10)], name="mnist-mlp")
    rate = nn.ExponentialDecay(0.001, decay_steps=60, decay_rate=0.997, staircase=True)
    model.compile(nn.SGD(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


if __name__ == "__main__":
    model = mlp()
    model.fit("train_data.zarr", validation_data="test_data.zarr", epochs=int(sys.argv[1]), batch_size=64, seed=1)
    print(model.evaluate("test_data.zarr"))
