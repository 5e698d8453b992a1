"""AlexNet: Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks (2012)."""

from __future__ import annotations

from typing import Any

from dsinga import nn
from dsinga.job import Job
from dsinga.models.blocks import layers_of, make_job, records

# Of each convolution the filters, the kernel, the number that biases begin with, and its stride or padding.
CONVOLUTIONS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (96, 11, 0, {"strides": 4}),
    (256, 5, 1, {"padding": 2}),
    (384, 3, 0, {"padding": 1}),
    (384, 3, 1, {"padding": 1}),
    (256, 3, 1, {"padding": 1}),
)


def alexnet(
    classes: int = 1000, data: str = "", *, size: int = 256, cropsize: int = 227, batchsize: int = 256, **job: Any
) -> Job:
    """Return the job of AlexNet as in SINGA's example: one column, normalisation after pooling.

    It subtracts 115, about the mean pixel of ImageNet, from all pixels; SINGA subtracts the mean image.

    Args:
        classes: number of different labels.
        data: folder of train_data.zarr and test_data.zarr; by default the folder of the job file.
        size: height and width of a record, in pixels.
        cropsize: height and width of the part that the net sees, cut out at random in training.
        batchsize: records of an iteration.
        job: further fields of the job, such as ``train_steps``.
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
    layers = [*records(data, batchsize, [3, size, size], mean_value=115), *layers_of(loss)]
    updater = {
        "type": "kSGD",
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "learning_rate": {"type": "kStep", "base_lr": 0.01, "step_conf": {"gamma": 0.1, "change_freq": 100000}},
    }
    return make_job(job, "alexnet", layers, updater, train_steps=450000, disp_freq=20, test_freq=1000)


def _params(std: float, bias: float) -> list[dict[str, Any]]:
    """Return a normal weight and a constant bias, which learns twice as fast and has no weight decay."""
    weight = {"init": {"type": "kGaussian", "std": std}}
    return [weight, {"init": {"type": "kConstant", "value": bias}, "lr_scale": 2, "wd_scale": 0}]
