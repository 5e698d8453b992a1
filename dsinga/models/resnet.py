"""Deep convolutional nets for small images: residual nets and VGG.

He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition (2016), 4.2; Simonyan and Zisserman, Very Deep
Convolutional Networks (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.job import Job, LayerConf
from dsinga.models.blocks import conv, dense, layer, loss, make_job, pool, records, relu, sgd_by_steps

STAGES = (16, 32, 64)  # filters
VGG_STAGES = ((32, 2), (64, 2), (128, 2))  # filters and number of convolutions


@typed("models.")
def resnet(
    depth: int = 20,
    classes: int = 10,
    data: str = "",
    *,
    size: int = 32,
    batchsize: int = 128,
    augment: bool = True,
    **job: Any,
) -> Job:
    """Return the job of a residual net of 6n + 2 layers: three stages of n blocks with 16, 32, 64 filters.

    Where a stage halves the image, a 1 x 1 convolution adapts the input's shape (option B of the paper). Schedule,
    weight decay and augmentation are the paper's for CIFAR-10.

    Args:
        depth: 20, 32, 44, 56 or 110 in the paper; 8 is the smallest.
        classes: number of classes.
        data: folder with train_data.zarr, test_data.zarr and image_mean.zarr.
        size: height and width of an image, in pixels.
        batchsize: records per iteration.
        augment: whether training images are cropped and mirrored at random.
        job: further fields of the job.

    Raises:
        UserError: ``depth`` is not 6n + 2.
    """
    blocks, rest = divmod(depth - 2, 6)
    if blocks < 1 or rest:
        raise UserError(f"a residual net has 6n + 2 layers, such as 8, 14 or 20, not {depth}")
    images = read_images(data, batchsize, size, augment)
    layers = [*images, *normalised("conv1", images[-1].name, STAGES[0]), relu("relu1", "conv1_bn")]
    source, channels = "relu1", STAGES[0]
    for stage, filters in enumerate(STAGES, 2):
        for number in range(1, blocks + 1):
            block = f"block{stage}_{number}"
            layers += residual(block, source, filters, 1 if filters == channels else 2)
            source, channels = f"{block}_relu2", filters
    layers += [
        layer("pool", "kPooling", source, pooling_conf={"pool": "AVG", "global_pooling": True}),
        dense("ip", "pool", classes),
        loss("ip"),
    ]
    sgd = sgd_by_steps({0: 0.1, 32000: 0.01, 48000: 0.001}, weight_decay=0.0001)
    return make_job(job, f"resnet{depth}", layers, sgd, train_steps=64000, disp_freq=100, test_freq=1000)


def read_images(data: str, batchsize: int, size: int, augment: bool) -> list[LayerConf]:
    """Return layers that read images and subtract the mean; with ``augment`` they crop and mirror at random."""
    image = {"pad": 4, "cropsize": size, "mirror": True}
    return [
        *records(data, batchsize, [3, size, size], mean_file="image_mean.zarr"),
        *([layer("image", "kImagePreprocess", "data", rgbimage_conf=image)] if augment else []),
    ]


def residual(name: str, source: str, filters: int, stride: int = 1) -> list[LayerConf]:
    """Return the layers of a residual block relu(f(x) + x), where f is two convolutions.

    The last is ``<name>_relu2``. If ``stride`` is above 1, a 1 x 1 convolution with the stride is applied to x.
    """
    projected = normalised(f"{name}_proj", source, filters, 1, stride) if stride > 1 else []
    return [
        *normalised(f"{name}_conv1", source, filters, stride=stride),
        relu(f"{name}_relu1", f"{name}_conv1_bn"),
        *normalised(f"{name}_conv2", f"{name}_relu1", filters),
        *projected,
        layer(f"{name}_add", "kAdd", f"{name}_conv2_bn", f"{name}_proj_bn" if projected else source),
        relu(f"{name}_relu2", f"{name}_add"),
    ]


def normalised(name: str, source: str, filters: int, kernel: int = 3, stride: int = 1) -> list[LayerConf]:
    """Return a convolution without a bias, and its batch normalisation, ``<name>_bn``."""
    return [
        conv(name, source, filters, kernel, stride=stride, pad=kernel // 2, bias_term=False),
        layer(f"{name}_bn", "kBM", name),
    ]


@typed("models.")
def vgg(
    stages: Sequence[tuple[int, int]] = VGG_STAGES,
    classes: int = 10,
    data: str = "",
    *,
    size: int = 32,
    hidden: int = 256,
    dropout: float = 0.5,
    batchsize: int = 128,
    augment: bool = True,
    **job: Any,
) -> Job:
    """Return the job of a VGG net: stages of 3 x 3 convolutions, each ended by a pooling that halves the image.

    Each convolution has batch normalisation (Ioffe and Szegedy 2015), unlike in the paper. One dense layer with
    dropout, and the classifier, follow the stages.

    Args:
        stages: filters and number of convolutions of each stage; the paper's net D has ``((64, 2), (128, 2), (256, 3),
            (512, 3), (512, 3))``.
        classes: number of classes.
        data: folder with train_data.zarr, test_data.zarr and image_mean.zarr.
        size: height and width of an image, in pixels.
        hidden: units of the dense layer.
        dropout: share of the hidden units to drop in training.
        batchsize: records per iteration.
        augment: whether training images are cropped and mirrored at random.
        job: further fields of the job.

    Raises:
        UserError: an image of ``size`` cannot be halved once a stage.
    """
    if not stages or size % 2 ** len(stages):
        raise UserError(
            f"{len(stages)} stages halve an image {len(stages)} times, which {size} pixels cannot be; "
            "give from one to fewer stages, or another size"
        )
    layers = read_images(data, batchsize, size, augment)
    source = layers[-1].name
    for stage, (filters, count) in enumerate(stages, 1):
        for number in range(1, count + 1):
            name = f"conv{stage}_{number}"
            layers += [*normalised(name, source, filters), relu(f"{name}_relu", f"{name}_bn")]
            source = f"{name}_relu"
        layers.append(pool(f"pool{stage}", source, kernel=2))
        source = f"pool{stage}"
    layers += [
        dense("hidden", source, hidden),
        relu("hidden_relu", "hidden"),
        layer("drop", "kDropout", "hidden_relu", dropout_conf={"dropout_ratio": dropout}),
        dense("ip", "drop", classes),
        loss("ip"),
    ]
    sgd = sgd_by_steps({0: 0.05, 4000: 0.01, 6000: 0.001}, weight_decay=0.0005)
    return make_job(job, "vgg", layers, sgd, train_steps=7000, disp_freq=100, test_freq=1000)
