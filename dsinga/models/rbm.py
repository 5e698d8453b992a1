"""Stacks of restricted Boltzmann machines, trained one after the other, and the auto-encoders that they unfold into."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.job import Job, LayerConf
from dsinga.models.blocks import NORMAL, layer, make_job, records, updater
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import LayerBuilder, Symbol

SIZES = (784, 1000, 500, 250, 30)
"""Layer sizes of Hinton and Salakhutdinov's net for images of MNIST, and of SINGA's example."""


@typed("models.")
def rbm(
    number: int = 1,
    sizes: Sequence[int] = SIZES,
    data: str = "",
    *,
    name: str = "rbm",
    folder: str = "",
    highest: float = 255,
    binary: bool = False,
    cd_k: int = 1,
    persistent: bool = False,
    batchsize: int = 100,
    learning_rate: float | None = None,
    **job: Any,
) -> Job:
    """Return the job that trains one restricted Boltzmann machine of a stack, number ``number``.

    It has ``sizes[number - 1]`` visible and ``sizes[number]`` hidden units. Train the jobs 1, 2, ... in order. Each
    loads the machines below it from the newest checkpoints in their workspaces (``checkpoint_path``). Machine 1 has the
    weight ``w1``, the visible bias ``b11`` and the hidden bias ``b12``.

    Args:
        number: number of the machine, 1 or more.
        sizes: units of each layer; the first is the length of a record.
        data: folder with train_data.zarr and test_data.zarr.
        name: name of the jobs, without their number.
        folder: folder of the workspaces ``<name><number>-workspace``; defaults to the working directory.
        highest: largest number in a record, the divisor.
        binary: whether the last layer's units are binary, like the others, not gaussian, as for a code.
        cd_k: number of Gibbs steps.
        persistent: whether Gibbs chains continue from batch to batch.
        batchsize: records per iteration.
        learning_rate: for SGD with momentum 0.8; defaults to 0.1, or 0.001 with gaussian units.
        job: further fields of the job.

    Raises:
        UserError: ``sizes`` has no machine of this number.
    """
    if not 1 <= number < len(sizes):
        raise UserError(f"{len(sizes)} sizes make machines 1 to {len(sizes) - 1}; there is no machine {number}")
    gaussian = number == len(sizes) - 1 and not binary
    below = encoder(nn.Input(sizes[0]), sizes, number - 1)
    layers = [
        *records(data, batchsize, [sizes[0]], std_value=highest),
        *confs_of(below),
        *_machine(number, sizes[number], below, gaussian, persistent),
    ]
    rate = learning_rate if learning_rate is not None else 0.001 if gaussian else 0.1
    sgd = updater("kSGD", rate, momentum=0.8, weight_decay=0.0002)
    start = workspaces(number - 1, name, folder)
    fields = {"checkpoint_path": start, "train_steps": 6000, "disp_freq": 100, "test_freq": 500}
    algorithm = {"alg": "kCD", "cd_conf": {"cd_k": cd_k}}
    return make_job(job, f"{name}{number}", layers, sgd, **fields, train_one_batch=algorithm)


def _machine(number: int, units: int, below: Symbol, gaussian: bool, persistent: bool) -> list[LayerConf]:
    """Return the visible and hidden layers of a machine that reads ``below``."""
    weight, visible, hidden = f"w{number}", f"b{number}1", f"b{number}2"
    size = {"hdim": units}
    return [
        layer(
            "RBMVis", "kRBMVis", below.builder.name or "", "RBMHid",
            rbm_conf=size, param=[{"name": weight, "init": NORMAL}, {"name": visible, "wd_scale": 0}],
        ),
        layer(
            "RBMHid", "kRBMHid", "RBMVis", rbm_conf={**size, "gaussian": gaussian, "persistent": persistent},
            param=[{"name": f"{weight}_", "share_from": weight}, {"name": hidden, "wd_scale": 0}],
        ),
    ]  # fmt: skip


def encoder(x: Symbol, sizes: Sequence[int], depth: int) -> Symbol:
    """Return the first ``depth`` machines as dense layers with sigmoids: ``Inner1``, ``Sigmoid1``, ..."""
    for number in range(1, depth + 1):
        inner = connected(f"Inner{number}", sizes[number], f"w{number}", f"b{number}2")(x)
        x = nn.Activation("sigmoid", name=f"Sigmoid{number}")(inner)
    return x


def connected(name: str, outputs: int, weight: str, bias: str, shared: str = "") -> LayerBuilder:
    """Return a dense layer with named params; if given, its weight is the param ``shared``, transposed."""
    param = {"name": weight, "share_from": shared} if shared else {"name": weight, "init": NORMAL}
    return nn.Dense(outputs, transpose=bool(shared), param=[param, {"name": bias}], name=name)


def workspaces(count: int, name: str, folder: str) -> list[str]:
    """Return the workspaces of the first ``count`` jobs of a stack, last job first."""
    return [posixpath.join(folder, f"{name}{number}-workspace") for number in range(count, 0, -1)]


@typed("models.")
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

    The encoder computes a linear code, ``Inner<n>``. The decoder reconstructs the record with the same weights,
    transposed. The loss is the squared distance between the record and the decoder's last sigmoid. Hinton and
    Salakhutdinov, Reducing the Dimensionality of Data with Neural Networks (Science 2006); hyperparameters of SINGA's
    examples/rbm.

    Args:
        sizes: units of each layer, from the record to the code.
        data: folder with train_data.zarr and test_data.zarr.
        pretrained: name of the machines' jobs, without their number; "" starts from random weights.
        folder: folder of their workspaces; defaults to the working directory.
        highest: largest number in a record, the divisor.
        batchsize: records per iteration.
        learning_rate: for AdaGrad.
        job: further fields of the job.
    """
    depth = len(sizes) - 1
    pixels = nn.Input(sizes[0])
    (x,) = encoder(pixels, sizes, depth).sources or (pixels,)  # without the last sigmoid
    for number in range(depth, 0, -1):
        up = 2 * depth + 1 - number
        inner = connected(f"Inner{up}", sizes[number - 1], f"w{up}", f"b{number}1", shared=f"w{number}")(x)
        x = nn.Activation("sigmoid", name=f"Sigmoid{up}")(inner)
    loss = nn.EuclideanLoss(name="loss")(x, pixels)
    layers = [*records(data, batchsize, [sizes[0]], std_value=highest), *confs_of(loss)]
    steps = {"train_steps": 12200, "disp_freq": 100, "test_freq": 1000}
    start = workspaces(depth, pretrained, folder) if pretrained else []
    fields = {"checkpoint_path": start, **steps}
    return make_job(job, "autoencoder", layers, updater("kAdaGrad", learning_rate), **fields)
