"""Deep auto-encoders: a stack of restricted Boltzmann machines, unfolded and fine-tuned by back-propagation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.job import Job
from dsinga.models.blocks import job_fields, layer, records
from dsinga.models.rbm import SIZES, connected, encoder, workspaces


def autoencoder(
    sizes: Sequence[int] = SIZES,
    data: str = "",
    *,
    pretrained: str = "rbm",
    folder: str = "",
    highest: float = 255,
    batchsize: int = 100,
    learning_rate: float = 0.01,
    **job: Any,
) -> Job:
    """Return the job of the auto-encoder that a stack of machines (:func:`dsinga.models.rbm`) unfolds into.

    The encoder computes a linear code, ``Inner<n>``; the decoder computes the record from it with the same weights,
    transposed. The loss is the squared distance between the record and the decoder's last sigmoid. Hinton and
    Salakhutdinov, Reducing the Dimensionality of Data with Neural Networks (Science 2006); hyperparameters of SINGA's
    examples/rbm.

    Args:
        sizes: number of units of each layer, from the record to the code.
        data: folder of train_data.zarr and test_data.zarr; by default the folder of the job file.
        pretrained: name of the jobs of the machines, without their number; "" starts from random weights.
        folder: folder of their workspaces; by default the working directory.
        highest: largest number in a record; records are divided by it.
        batchsize: records of an iteration.
        learning_rate: learning rate of AdaGrad.
        job: further fields of the job, such as ``train_steps``.
    """
    depth = len(sizes) - 1
    layers = [*records(data, batchsize, [sizes[0]], std_value=highest), *encoder(sizes, depth)[:-1]]
    source = layers[-1].name
    for number in range(depth, 0, -1):
        up = 2 * depth + 1 - number
        inner, sigmoid = f"Inner{up}", f"Sigmoid{up}"
        layers += [
            connected(inner, source, sizes[number - 1], f"w{up}", f"b{number}1", shared=f"w{number}"),
            layer(sigmoid, "kSigmoid", inner),
        ]
        source = sigmoid
    layers.append(layer("loss", "kEuclideanLoss", source, "data"))
    updater = {"type": "kAdaGrad", "learning_rate": {"type": "kFixed", "base_lr": learning_rate}}
    steps = {"train_steps": 12200, "disp_freq": 100, "test_freq": 1000}
    start = workspaces(depth, pretrained, folder) if pretrained else []
    fields = {"name": "autoencoder", "seed": 1, "checkpoint_path": start, **steps}
    return Job(**job_fields(job, **fields, updater=updater, net={"layer": layers}))
