"""VGG nets for small images: Simonyan and Zisserman, Very Deep Convolutional Networks (2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Job
from dsinga.models.blocks import dense, job_fields, layer, loss, pool, records, relu
from dsinga.models.resnet import normalised

STAGES = ((32, 2), (64, 2), (128, 2))


def vgg(
    stages: Sequence[tuple[int, int]] = STAGES,
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
    """Return the job of a VGG net: stages of 3 x 3 convolutions, each followed by a pooling that halves the image.

    Each convolution has batch normalisation (Ioffe and Szegedy 2015), which the paper did not have yet. Above the
    stages are one fully connected layer with dropout, and the classifier.

    Args:
        stages: filters and number of convolutions of each stage; the paper's net D has
            ``((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))``.
        classes: number of different labels.
        data: folder of train_data.zarr, test_data.zarr and image_mean.zarr; by default the folder of the job file.
        size: height and width of an image, in pixels.
        hidden: units of the fully connected layer.
        dropout: share of these units that are 0 in a training step.
        batchsize: records of an iteration.
        augment: whether training images are cropped and mirrored at random.
        job: further fields of the job, such as ``train_steps``.

    Raises:
        UserError: an image of ``size`` cannot be halved as often as there are stages.
    """
    if not stages or size % 2 ** len(stages):
        raise UserError(
            f"{len(stages)} stages halve an image {len(stages)} times, which {size} pixels cannot be; "
            "give from one to fewer stages, or another size"
        )
    image = {"pad": 4, "cropsize": size, "mirror": True}
    layers = [
        *records(data, batchsize, [3, size, size], mean_file="image_mean.zarr"),
        *([layer("image", "kImagePreprocess", "data", rgbimage_conf=image)] if augment else []),
    ]
    source = "image" if augment else "data"
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
    updater = {
        "type": "kSGD",
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "learning_rate": {
            "type": "kFixedStep",
            "fixedstep_conf": {"step": [0, 4000, 6000], "step_lr": [0.05, 0.01, 0.001]},
        },
    }
    fields = {"name": "vgg", "seed": 1, "train_steps": 7000, "disp_freq": 100, "test_freq": 1000}
    return Job(**job_fields(job, **fields, updater=updater, net={"layer": layers}))
