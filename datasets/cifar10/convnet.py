"""The net of convnet.conf in Python: python convnet.py EPOCHS, in the folder of the stores."""

import sys

from dsinga import nn


def convnet(mean_file="image_mean.zarr"):
    def lrn(name):
        return nn.LocalResponseNormalization(3, 5e-5, 0.75, name=name)

    def learned(number, std, bias_lr=2, weight_wd=1, bias_wd=1):  # the params of a layer
        weight = nn.Param(f"w{number}", nn.RandomNormal(stddev=std), wd_scale=weight_wd)
        return {"param": [weight, nn.Param(f"b{number}", "zeros", lr_scale=bias_lr, wd_scale=bias_wd)]}

    model = nn.Sequential(
        [
            nn.Input((3, 32, 32)),
            nn.Normalization(mean_file=mean_file),
            nn.Conv2D(32, 5, padding="same", name="conv1", **learned(1, 0.0001)),
            nn.MaxPooling2D(3, 2, name="pool1"),
            nn.ReLU(name="relu1"),
            lrn("norm1"),
            nn.Conv2D(32, 5, padding="same", name="conv2", **learned(2, 0.01)),
            nn.ReLU(name="relu2"),
            nn.AveragePooling2D(3, 2, name="pool2"),
            lrn("norm2"),
            nn.Conv2D(64, 5, padding="same", name="conv3", **learned(3, 0.01, bias_lr=1)),
            nn.ReLU(name="relu3"),
            nn.AveragePooling2D(3, 2, name="pool3"),
            nn.Flatten(),
            nn.Dense(10, name="ip1", **learned(4, 0.01, weight_wd=250, bias_wd=0)),
        ],
        name="convnet",
    )
    rate = nn.PiecewiseConstantDecay([59999, 64999], [0.001, 0.0001, 0.00001])
    optimizer = nn.SGD(rate, momentum=0.9, weight_decay=0.004)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


if __name__ == "__main__":
    model = convnet()
    model.fit("train_data.zarr", validation_data="test_data.zarr", epochs=int(sys.argv[1]), batch_size=100, seed=1)
    print(model.evaluate("test_data.zarr"))
