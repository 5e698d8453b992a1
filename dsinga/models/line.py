"""Linear regression, and a softmax regression of classes: nets of a single fully connected layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.job import Job
from dsinga.models.blocks import dense, job_fields, layer, loss, records

ZERO = {"type": "kConstant", "value": 0.0}


def line(
    inputs: int = 10, outputs: int = 1, data: str = "", *, batchsize: int = 64, learning_rate: float = 0.05, **job: Any
) -> Job:
    """Return the job of linear regression, x·w + b, with the squared error as its loss; w and b begin at 0.

    Args:
        inputs: numbers of a record.
        outputs: numbers to predict, the labels of a record.
        data: folder of train_data.zarr and test_data.zarr; by default the folder of the job file.
        batchsize: records of an iteration.
        learning_rate: learning rate of SGD.
        job: further fields of the job, such as ``train_steps``.
    """
    layers = [
        *records(data, batchsize, [inputs]),
        dense("out", "data", outputs, ZERO),
        layer("target", "kLabel", "data"),
        layer("loss", "kEuclideanLoss", "out", "target"),
        layer("errors", "kRegressionError", "out", "data", exclude=["kTrain"]),
    ]
    updater = {"type": "kSGD", "learning_rate": {"type": "kFixed", "base_lr": learning_rate}}
    fields = {"name": "line", "seed": 1, "train_steps": 600, "disp_freq": 20, "test_freq": 100}
    return Job(**job_fields(job, **fields, updater=updater, net={"layer": layers}))


def softmax_regression(
    shape: Sequence[int] = (784,),
    classes: int = 10,
    data: str = "",
    *,
    batchsize: int = 64,
    learning_rate: float = 0.1,
    scale: float = 255.0,
    **job: Any,
) -> Job:
    """Return the job of softmax regression: a score x·w + b for each class, and probabilities by the softmax.

    Args:
        shape: the shape of a record.
        classes: number of different labels.
        data: folder of train_data.zarr and test_data.zarr; by default the folder of the job file.
        batchsize: records of an iteration.
        learning_rate: learning rate of SGD.
        scale: what the numbers of a record are divided by.
        job: further fields of the job, such as ``train_steps``.
    """
    layers = [*records(data, batchsize, shape, std_value=scale), dense("ip", "data", classes, ZERO), loss("ip")]
    updater = {"type": "kSGD", "learning_rate": {"type": "kFixed", "base_lr": learning_rate}}
    fields = {"name": "softmax-regression", "seed": 1, "train_steps": 2000, "disp_freq": 100, "test_freq": 1000}
    return Job(**job_fields(job, **fields, updater=updater, net={"layer": layers}))
