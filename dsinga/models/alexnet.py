"""AlexNet: Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks (2012)."""

from __future__ import annotations

from typing import Any

from dsinga.job import Job, LayerConf
from dsinga.models.blocks import conv, dense, layer, loss, make_job, pool, records, relu


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
    image = {"cropsize": cropsize, "mirror": True}
    layers = [
        *records(data, batchsize, [3, size, size], mean_value=115),
        layer("image", "kImagePreprocess", "data", rgbimage_conf=image),
        _initialised(conv("conv1", "image", 96, 11, stride=4), 0.01, 0),
        *_pool_and_normalise(1),
        _initialised(conv("conv2", "norm1", 256, 5, pad=2), 0.01, 1),
        *_pool_and_normalise(2),
        _initialised(conv("conv3", "norm2", 384, 3, pad=1), 0.01, 0),
        relu("relu3", "conv3"),
        _initialised(conv("conv4", "relu3", 384, 3, pad=1), 0.01, 1),
        relu("relu4", "conv4"),
        _initialised(conv("conv5", "relu4", 256, 3, pad=1), 0.01, 1),
        relu("relu5", "conv5"),
        pool("pool5", "relu5"),
        *_dense_with_dropout(6, "pool5"),
        *_dense_with_dropout(7, "drop6"),
        _initialised(dense("ip8", "drop7", classes), 0.01, 0),
        loss("ip8"),
    ]
    updater = {
        "type": "kSGD",
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "learning_rate": {"type": "kStep", "base_lr": 0.01, "step_conf": {"gamma": 0.1, "change_freq": 100000}},
    }
    return make_job(job, "alexnet", layers, updater, train_steps=450000, disp_freq=20, test_freq=1000)


def _pool_and_normalise(number: int) -> list[LayerConf]:
    """Return the layers after one of the first two convolutions: relu, pooling, local response normalisation."""
    lrn = {"local_size": 5, "alpha": 0.0001, "beta": 0.75}
    return [
        relu(f"relu{number}", f"conv{number}"),
        pool(f"pool{number}", f"relu{number}"),
        layer(f"norm{number}", "kLRN", f"pool{number}", lrn_conf=lrn),
    ]


def _dense_with_dropout(number: int, source: str) -> list[LayerConf]:
    """Return a fully connected layer of 4096 units with relu, and dropout of half of them in training."""
    return [
        _initialised(dense(f"ip{number}", source, 4096), 0.005, 1),
        relu(f"relu{number}", f"ip{number}"),
        layer(f"drop{number}", "kDropout", f"relu{number}"),
    ]


def _initialised(conf: LayerConf, std: float, bias: float) -> LayerConf:
    """Return the layer with a normal weight and a constant bias, which learns twice as fast and has no weight decay."""
    weight = {"init": {"type": "kGaussian", "std": std}}
    return conf.replace(param=[weight, {"init": {"type": "kConstant", "value": bias}, "lr_scale": 2, "wd_scale": 0}])
