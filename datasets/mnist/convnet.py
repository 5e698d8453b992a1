"""The net of convnet.conf in Python: python convnet.py EPOCHS, in the folder of the stores."""

import sys

from dsinga import nn


def convnet():
    numbers = iter(range(1, 5))

    def learned():  # the arguments of each layer with params: biases learn twice as fast as weights
        number = next(numbers)
        weight, bias = nn.Param(f"w{number}", "kUniformSqrtFanIn"), nn.Param(f"b{number}", "zeros", lr_scale=2)
        return {"param": [weight, bias]}

    model = nn.Sequential(
        [
            nn.Input((1, 28, 28)),
            nn.Rescaling(1 / 255),
            nn.Conv2D(20, 5, name="conv1", **learned()),
            nn.MaxPooling2D(2, name="pool1"),
            nn.Conv2D(50, 5, name="conv2", **learned()),
            nn.MaxPooling2D(2, name="pool2"),
            nn.Flatten(),
            nn.Dense(500, name="ip1", **learned()),
            nn.ReLU(name="relu1"),
            nn.Dense(10, name="ip2", **learned()),
        ],
        name="mnist-convnet",
    )
    rate = nn.Schedule("kInverse", 0.01, inverse_conf={"gamma": 0.0001, "pow": 0.75})
    optimizer = nn.SGD(rate, momentum=0.9, weight_decay=0.0005)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


if __name__ == "__main__":
    model = convnet()
    model.fit("train_data.zarr", validation_data="test_data.zarr", epochs=int(sys.argv[1]), batch_size=64, seed=1)
    print(model.evaluate("test_data.zarr"))
