"""Multi-layer perceptrons: nets of fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.job import Job
from dsinga.models.blocks import HE, Init, dense, job_fields, layer, loss, records


def mlp(
    hidden: Sequence[int] = (512, 256),
    inputs: int = 784,
    classes: int = 10,
    data: str = "",
    *,
    activation: str = "kReLU",
    init: Init = HE,
    dropout: float = 0.0,
    brightest: float = 255.0,
    batchsize: int = 64,
    learning_rate: float = 0.05,
    **job: Any,
) -> Job:
    """Return the job of a multi-layer perceptron for records of ``inputs`` bytes, such as images of MNIST.

    Args:
        hidden: the number of units of each hidden layer.
        inputs: length of a record.
        classes: number of different labels.
        data: folder of train_data.zarr and test_data.zarr; by default the folder of the job file.
        activation: the layer type after each hidden layer.
        init: initialiser of the weights.
        dropout: fraction of hidden units to drop in training.
        brightest: the largest number of a record; numbers from 0 to this one become -1 to 1.
        batchsize: records of an iteration.
        learning_rate: learning rate of SGD with momentum 0.9.
        job: further fields of the job, such as ``train_steps``.
    """
    layers = records(data, batchsize, [inputs], mean_value=brightest / 2, std_value=brightest / 2)
    source = "data"
    for number, outputs in enumerate(hidden, 1):
        layers += [
            dense(f"fc{number}", source, outputs, init),
            layer(f"act{number}", activation, f"fc{number}"),
        ]
        source = f"act{number}"
        if dropout:
            layers.append(layer(f"drop{number}", "kDropout", source, dropout_conf={"dropout_ratio": dropout}))
            source = f"drop{number}"
    layers += [dense("ip", source, classes, init), loss("ip")]
    updater = {"type": "kSGD", "momentum": 0.9, "learning_rate": {"type": "kFixed", "base_lr": learning_rate}}
    fields = {"name": "mlp", "seed": 1, "train_steps": 2000, "disp_freq": 100, "test_freq": 1000}
    return Job(**job_fields(job, **fields, updater=updater, net={"layer": layers}))
