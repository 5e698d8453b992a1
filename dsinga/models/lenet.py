"""A small convolutional net for handwritten digits, after LeCun et al., Gradient-based learning (1998)."""

from __future__ import annotations

from typing import Any

from dsinga.job import Job
from dsinga.models.blocks import conv, dense, job_fields, loss, pool, records, relu


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
    """Return the job of two convolutions with pooling, and a hidden layer, for square grey pictures.

    Args:
        size: width and height of a picture, such as 28 or 8; below 16 the kernels are 3 x 3, else 5 x 5.
        filters: the number of filters of the two convolutions.
        classes: number of different labels.
        data: folder of train_data.zarr and test_data.zarr; by default the folder of the job file.
        hidden: the number of units of the hidden layer.
        scale: what the pixels are divided by.
        batchsize: records of an iteration.
        learning_rate: learning rate of SGD with momentum 0.9.
        job: further fields of the job, such as ``train_steps``.
    """
    kernel, pad = (5, 2) if size >= 16 else (3, 1)
    layers = [
        *records(data, batchsize, [1, size, size], std_value=scale),
        conv("conv1", "data", filters[0], kernel, pad=pad),
        pool("pool1", "conv1", kernel=2),
        relu("relu1", "pool1"),
        conv("conv2", "relu1", filters[1], kernel, pad=pad),
        pool("pool2", "conv2", kernel=2),
        relu("relu2", "pool2"),
        dense("hidden", "relu2", hidden),
        relu("relu3", "hidden"),
        dense("ip", "relu3", classes),
        loss("ip"),
    ]
    updater = {"type": "kSGD", "momentum": 0.9, "learning_rate": {"type": "kFixed", "base_lr": learning_rate}}
    fields = {"name": "lenet", "seed": 1, "train_steps": 2000, "disp_freq": 100, "test_freq": 1000}
    return Job(**job_fields(job, **fields, updater=updater, net={"layer": layers}))
