"""Fully connected nets: linear and softmax regression, multi-layer perceptrons, and multi-modal ones.

A multi-modal net maps images and texts to codes that can be compared.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.job import Job, LayerConf
from dsinga.models.blocks import HE, TESTS, Init, dense, layer, loss, make_job, read, records, updater
from dsinga.nn.writing.net_conf import confs_of


@typed("models.")
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
        hidden: units of each hidden layer.
        inputs: length of a record.
        classes: number of classes.
        data: folder with train_data.zarr and test_data.zarr.
        activation: layer type after each hidden layer.
        init: initialiser of the weights.
        dropout: fraction of hidden units to drop in training.
        brightest: largest number of a record, scaled to 1; 0 is scaled to -1.
        batchsize: records per iteration.
        learning_rate: for SGD with momentum 0.9.
        job: further fields of the job.
    """
    x = numbers = nn.Input(1)  # records of any length
    for number, outputs in enumerate(hidden, 1):
        x = nn.Dense(outputs, param=[{"init": init}], name=f"fc{number}")(x)
        x = nn.Layer(activation, name=f"act{number}")(x)
        if dropout:
            x = nn.Dropout(dropout, name=f"drop{number}")(x)
    scores = nn.Dense(classes, param=[{"init": init}], name="ip")(x)
    loss = nn.SoftmaxLoss(name="loss")(scores, labels=numbers)
    read_numbers = records(data, batchsize, [inputs], mean_value=brightest / 2, std_value=brightest / 2)
    sgd = updater("kSGD", learning_rate, momentum=0.9)
    return make_job(job, "mlp", [*read_numbers, *confs_of(loss)], sgd, train_steps=2000, disp_freq=100, test_freq=1000)


@typed("models.")
def mdnn(
    image: Sequence[int] = (256,),
    text: Sequence[int] = (64,),
    code: int = 32,
    classes: int = 10,
    data: str = "",
    *,
    image_scale: float = 1.0,
    text_scale: float = 1.0,
    distance_scale: float = 0.05,
    dropout: float = 0.5,
    batchsize: int = 100,
    test_batchsize: int = 99,
    learning_rate: float = 0.05,
    weight_decay: float = 0.005,
    text_decay: float = 0.2,
    image_store: dict[str, Any] | None = None,
    text_store: dict[str, Any] | None = None,
    **job: Any,
) -> Job:
    """Return the job of a multi-modal net, which maps the image and the text of a pair to comparable codes.

    The loss is a weighted sum of three: the label loss of each code, and the squared distance between the two codes (W.
    Wang et al., Effective deep learning-based multimodal retrieval, VLDB Journal 2016; SINGA's Figure 7). Row i of both
    stores is a pair. With ``location`` in the layers, each of two workers computes a path, and only codes and their
    gradients are sent.

    Records are feature vectors.

    Args:
        image: units of each hidden layer between image and code.
        text: units of each hidden layer between text and code.
        code: length of the codes.
        classes: number of classes.
        data: folder with I_tr.zarr, I_te.zarr, T_tr.zarr and T_te.zarr (images and texts, for training and testing).
        image_scale: weight of the images' label loss.
        text_scale: weight of the texts' label loss.
        distance_scale: weight of the distance loss.
        dropout: fraction of hidden units to drop in training.
        batchsize: pairs per iteration.
        test_batchsize: as ``batchsize``, in tests.
        learning_rate: for SGD with momentum 0.9; it falls to a fifth after two thirds of the steps.
        weight_decay: optimizer's weight decay.
        text_decay: factor of the weight decay on the texts' path, with few features.
        image_store: further store_conf fields for images, such as mean_value and std_value.
        text_store: further store_conf fields for texts.
        job: further fields of the job.
    """
    sizes = batchsize, test_batchsize
    layers = [
        *_path("image", "I", image, code, classes, data, sizes, dropout, image_scale, 1.0, image_store or {}),
        *_path("text", "T", text, code, classes, data, sizes, dropout, text_scale, text_decay, text_store or {}),
        layer("distance", "kEuclideanLoss", "image_code", "text_code", euclideanloss_conf={"scale": distance_scale}),
    ]
    steps = job.get("train_steps", 600)
    rate = {"type": "kStep", "base_lr": learning_rate}
    rate["step_conf"] = {"gamma": 0.2, "change_freq": max(steps * 2 // 3, 1)}
    sgd = {"type": "kSGD", "momentum": 0.9, "weight_decay": weight_decay, "learning_rate": rate}
    return make_job(job, "mdnn", layers, sgd, train_steps=steps, disp_freq=50, test_freq=200)


def _path(
    name: str, letter: str, hidden: Sequence[int], code: int, classes: int, data: str, sizes: tuple[int, int],
    dropout: float, scale: float, decay: float, store: dict[str, Any],
) -> list[LayerConf]:  # fmt: skip
    """Return the layers of one modality, image or text, from its records to its label loss."""
    x = pairs = nn.Input(1, name)  # records of any length
    for number, outputs in enumerate(hidden, 1):
        x = nn.Dense(outputs, kernel_initializer=HE, wd_scale=[decay], name=f"{name}_fc{number}")(x)
        x = nn.ReLU(name=f"{name}_relu{number}")(x)
        if dropout:
            x = nn.Dropout(dropout, name=f"{name}_drop{number}")(x)
    x = nn.Activation("stanh", name=f"{name}_code")(nn.Dense(code, wd_scale=[decay], name=f"{name}_linear")(x))
    scores = nn.Dense(classes, wd_scale=[decay], name=f"{name}_scores")(x)
    loss = nn.Layer("kSoftmaxLoss", softmaxloss_conf={"scale": scale}, name=f"{name}_loss")(scores, pairs)
    parts = ("tr", ["kTrain"], sizes[0]), ("te", TESTS, sizes[1])
    inputs = [
        read(name, posixpath.join(data, f"{letter}_{part}.zarr"), phases, size, **store) for part, phases, size in parts
    ]
    return [*inputs, *confs_of(loss)]


ZERO = {"type": "kConstant", "value": 0.0}


@typed("models.")
def line(
    inputs: int = 10, outputs: int = 1, data: str = "", *, batchsize: int = 64, learning_rate: float = 0.05, **job: Any
) -> Job:
    """Return the job of linear regression, x·w + b, with a squared error loss; w and b begin at 0.

    Args:
        inputs: numbers of a record.
        outputs: numbers to predict, the labels of a record.
        data: folder with train_data.zarr and test_data.zarr.
        batchsize: records per iteration.
        learning_rate: for SGD.
        job: further fields of the job.
    """
    layers = [
        *records(data, batchsize, [inputs]),
        dense("out", "data", outputs, ZERO),
        layer("target", "kLabel", "data"),
        layer("loss", "kEuclideanLoss", "out", "target"),
        layer("errors", "kRegressionError", "out", "data", exclude=["kTrain"]),
    ]
    return make_job(job, "line", layers, updater("kSGD", learning_rate), train_steps=600, disp_freq=20, test_freq=100)


@typed("models.")
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
        shape: shape of a record.
        classes: number of classes.
        data: folder with train_data.zarr and test_data.zarr.
        batchsize: records per iteration.
        learning_rate: for SGD.
        scale: divisor of a record's numbers.
        job: further fields of the job.
    """
    layers = [*records(data, batchsize, shape, std_value=scale), dense("ip", "data", classes, ZERO), loss("ip")]
    sgd = updater("kSGD", learning_rate)
    return make_job(job, "softmax-regression", layers, sgd, train_steps=2000, disp_freq=100, test_freq=1000)
