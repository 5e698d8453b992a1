"""Small convolutional nets: SINGA's CIFAR-10 example, after cuda-convnet's quick net, and LeNet for digits.

LeCun et al., Gradient-based learning applied to document recognition (1998).
"""

from __future__ import annotations

from typing import Any

from dsinga.job import Job, LayerConf
from dsinga.models.blocks import conv, dense, layer, loss, make_job, pool, records, relu, sgd_by_steps, updater


def convnet(classes: int = 10, data: str = "", *, batchsize: int = 100, **job: Any) -> Job:
    """Return the job of three convolutions with local response normalisation, for images of 3 x 32 x 32.

    Args:
        classes: number of different labels.
        data: folder of train_data.zarr, test_data.zarr and image_mean.zarr; by default the folder of the job file.
        batchsize: records of an iteration.
        job: further fields of the job, such as ``train_steps``.
    """
    layers = [
        *records(data, batchsize, [3, 32, 32], mean_file="image_mean.zarr"),
        conv("conv1", "data", 32, 5, _normal(0.0001), pad=2),
        pool("pool1", "conv1"),
        relu("relu1", "pool1"),
        _lrn("norm1", "relu1"),
        conv("conv2", "norm1", 32, 5, _normal(0.01), pad=2),
        relu("relu2", "conv2"),
        pool("pool2", "relu2", "AVG"),
        _lrn("norm2", "pool2"),
        conv("conv3", "norm2", 64, 5, _normal(0.01), pad=2),
        relu("relu3", "conv3"),
        pool("pool3", "relu3", "AVG"),
        _strongly_decayed(dense("ip1", "pool3", classes, _normal(0.01))),
        loss("ip1"),
    ]
    sgd = sgd_by_steps({0: 0.001, 60000: 0.0001, 65000: 0.00001}, weight_decay=0.004)
    return make_job(job, "convnet", layers, sgd, train_steps=1000, disp_freq=50, test_freq=200)


def _normal(std: float) -> dict[str, Any]:
    return {"type": "kGaussian", "std": std}


def _lrn(name: str, source: str) -> LayerConf:
    return layer(name, "kLRN", source, lrn_conf={"local_size": 3, "alpha": 5e-5, "beta": 0.75})


def _strongly_decayed(conf: LayerConf) -> LayerConf:
    """Return the layer with 250 times the weight decay of the convolutions, and none for its bias."""
    return conf.replace(param=[conf.param[0].replace(wd_scale=250), {"lr_scale": 2, "wd_scale": 0}])


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
    sgd = updater("kSGD", learning_rate, momentum=0.9)
    return make_job(job, "lenet", layers, sgd, train_steps=2000, disp_freq=100, test_freq=1000)
