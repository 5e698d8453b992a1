"""Convolutional nets: SINGA's CIFAR-10 example (after cuda-convnet's quick net), LeNet for digits, and AlexNet.

LeCun et al., Gradient-based learning applied to document recognition (1998); Krizhevsky et al. (2012).
"""

from __future__ import annotations

from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.job import Job
from dsinga.models.blocks import HE, make_job, records, sgd_by_steps, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import LayerBuilder


@typed("models.")
def convnet(classes: int = 10, data: str = "", *, batchsize: int = 100, **job: Any) -> Job:
    """Return the job of three convolutions with local response normalisation, for images of 3 x 32 x 32.

    Args:
        classes: number of classes.
        data: folder with train_data.zarr, test_data.zarr and image_mean.zarr.
        batchsize: records per iteration.
        job: further fields of the job.
    """
    x = images = nn.Input((3, 32, 32))
    for layer in (
        _conv(1, 32, 0.0001), _pool(1), nn.ReLU(name="relu1"), _normalise(1),
        _conv(2, 32, 0.01), nn.ReLU(name="relu2"), _pool(2, "AVG"), _normalise(2),
        _conv(3, 64, 0.01), nn.ReLU(name="relu3"), _pool(3, "AVG"),
    ):  # fmt: skip
        x = layer(x)
    init = nn.RandomNormal(stddev=0.01)  # the weight decays 250 times as much as those of the convolutions
    scores = nn.Dense(classes, kernel_initializer=init, lr_scale=[1, 2], wd_scale=[250, 0], name="ip1")(x)
    loss = nn.SoftmaxLoss(name="loss")(scores, labels=images)
    layers = [*records(data, batchsize, [3, 32, 32], mean_file="image_mean.zarr"), *confs_of(loss)]
    sgd = sgd_by_steps({0: 0.001, 60000: 0.0001, 65000: 0.00001}, weight_decay=0.004)
    return make_job(job, "convnet", layers, sgd, train_steps=1000, disp_freq=50, test_freq=200)


def _conv(number: int, filters: int, std: float) -> LayerBuilder:
    init = nn.RandomNormal(stddev=std)
    return nn.Conv2D(filters, 5, padding=2, kernel_initializer=init, name=f"conv{number}")


def _normalise(number: int) -> LayerBuilder:
    return nn.LocalResponseNormalization(3, 5e-5, 0.75, name=f"norm{number}")


def _pool(number: int, method: str = "MAX", kernel: int = 3) -> LayerBuilder:
    window = {"pool": method, "kernel": kernel, "stride": 2}
    return nn.Layer("kPooling", pooling_conf=window, name=f"pool{number}")


@typed("models.")
def lenet(
    size: int = 28,
    filters: tuple[int, int] = (20, 50),
    classes: int = 10,
    data: str = "",
    *,
    hidden: int = 128,
    scale: float = 255.0,
    batchsize: int = 64,
    learning_rate: float = 0.02,
    **job: Any,
) -> Job:
    """Return the job of LeNet for square grey images: two convolutions with pooling, and a hidden layer.

    Args:
        size: width and height of an image; below 16 the kernels are 3 x 3, else 5 x 5.
        filters: filters of the convolutions.
        classes: number of classes.
        data: folder with train_data.zarr and test_data.zarr.
        hidden: units of the hidden layer.
        scale: divisor of the pixels.
        batchsize: records per iteration.
        learning_rate: for SGD with momentum 0.9.
        job: further fields of the job.
    """
    kernel, pad = (5, 2) if size >= 16 else (3, 1)
    x = images = nn.Input((1, 28, 28))  # images of any size
    for number, count in enumerate(filters, 1):
        x = nn.Conv2D(count, kernel, padding=pad, kernel_initializer=HE, name=f"conv{number}")(x)
        x = nn.ReLU(name=f"relu{number}")(_pool(number, kernel=2)(x))
    x = nn.ReLU(name="relu3")(nn.Dense(hidden, kernel_initializer=HE, name="hidden")(x))
    loss = nn.SoftmaxLoss(name="loss")(nn.Dense(classes, kernel_initializer=HE, name="ip")(x), labels=images)
    layers = [*records(data, batchsize, [1, size, size], std_value=scale), *confs_of(loss)]
    sgd = updater("kSGD", learning_rate, momentum=0.9)
    return make_job(job, "lenet", layers, sgd, train_steps=2000, disp_freq=100, test_freq=1000)


# For each convolution: filters, kernel, initial bias, and stride or padding.
CONVOLUTIONS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (96, 11, 0, {"strides": 4}),
    (256, 5, 1, {"padding": 2}),
    (384, 3, 0, {"padding": 1}),
    (384, 3, 1, {"padding": 1}),
    (256, 3, 1, {"padding": 1}),
)


@typed("models.")
def alexnet(
    classes: int = 1000, data: str = "", *, size: int = 256, cropsize: int = 227, batchsize: int = 256, **job: Any
) -> Job:
    """Return the job of AlexNet as in SINGA's example: one column, normalisation after pooling.

    It subtracts 115, about the mean pixel of ImageNet, from all pixels; SINGA subtracts the mean image.

    Args:
        classes: number of classes.
        data: folder with train_data.zarr and test_data.zarr.
        size: height and width of a record, in pixels.
        cropsize: height and width of the crop that the net sees, at random in training.
        batchsize: records per iteration.
        job: further fields of the job.
    """
    crop = {"cropsize": cropsize, "mirror": True}
    images = nn.Input((3, size, size))
    x = nn.Layer("kImagePreprocess", rgbimage_conf=crop, name="image")(images)
    for number, (filters, kernel, bias, window) in enumerate(CONVOLUTIONS, 1):
        x = nn.Conv2D(filters, kernel, **window, param=_params(0.01, bias), name=f"conv{number}")(x)
        x = nn.ReLU(name=f"relu{number}")(x)
        if number in (1, 2, 5):
            x = nn.Layer("kPooling", pooling_conf={"kernel": 3, "stride": 2}, name=f"pool{number}")(x)
        if number in (1, 2):
            x = nn.LocalResponseNormalization(5, 0.0001, 0.75, name=f"norm{number}")(x)
    for number in (6, 7):
        x = nn.ReLU(name=f"relu{number}")(nn.Dense(4096, param=_params(0.005, 1), name=f"ip{number}")(x))
        x = nn.Layer("kDropout", name=f"drop{number}")(x)
    scores = nn.Dense(classes, param=_params(0.01, 0), name="ip8")(x)
    loss = nn.SoftmaxLoss(name="loss")(scores, labels=images)
    layers = [*records(data, batchsize, [3, size, size], mean_value=115), *confs_of(loss)]
    updater = {
        "type": "kSGD",
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "learning_rate": {"type": "kStep", "base_lr": 0.01, "step_conf": {"gamma": 0.1, "change_freq": 100000}},
    }
    return make_job(job, "alexnet", layers, updater, train_steps=450000, disp_freq=20, test_freq=1000)


def _params(std: float, bias: float) -> list[dict[str, Any]]:
    """Return AlexNet's weight and bias settings: a normal weight, and a constant bias that learns twice as fast."""
    weight = {"init": {"type": "kGaussian", "std": std}}
    return [weight, {"init": {"type": "kConstant", "value": bias}, "lr_scale": 2, "wd_scale": 0}]
