"""Measure a step of a net of timm: ``python -m tools.benchmarks.timm_steps dsinga/resnet18 STEPS``, or ``pytorch/...``.

The module is one and the same; dsinga trains what ``convert.from_torch`` makes of it. Updates are SGD with momentum,
and Adam's for the language model.
Times are those of the process on the core, without what other programs take.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dsinga import convert
from dsinga import nn as ours
from dsinga.passes.training_step import TrainingStep
from tools.benchmarks.timing import BF16, COMPILED, peak_megabytes
from tools.benchmarks.timm_modules import GPT, UNet
from tools.benchmarks.torch_nets import Peer

CLASSES, RATE, MOMENTUM = 1000, 1e-3, 0.9
CODES, ADAM_RATE = 8000, 1e-4  # of the language model
WARM_UP = 2  # steps at the beginning of each run


class TimmNet(NamedTuple):
    """A net by its name in timm, the pixels of a side, the batch size, and further arguments of ``create_model``.

    The language model "gpt" has texts of ``pixels`` codes.
    """

    name: str
    pixels: int
    batch: int
    settings: dict[str, Any] = {}


DEEP = {"drop_path_rate": 0.1}  # stochastic depth, as these nets are trained
NETS = {
    "resnet50": TimmNet("resnet50", 160, 8),
    "resnet18": TimmNet("resnet18", 224, 8),
    "densenet121": TimmNet("densenet121", 160, 8),
    "mobilenetv3": TimmNet("mobilenetv3_large_100", 224, 8),
    "regnety-008": TimmNet("regnety_008", 224, 8),
    "mixer-s": TimmNet("mixer_s16_224", 224, 8, DEEP),
    "efficientnet-b0": TimmNet("efficientnet_b0", 224, 8),
    "convnext-tiny": TimmNet("convnext_tiny", 160, 4, DEEP),
    "vit-tiny-197": TimmNet("vit_tiny_patch16_224", 224, 8, DEEP),
    "vit-tiny-577": TimmNet("vit_tiny_patch16_384", 384, 4, DEEP),
    "unet": TimmNet("unet", 256, 2),
    "gpt": TimmNet("gpt", 512, 4),
}


def module_of(net: TimmNet) -> nn.Module:
    """Return the PyTorch module of a net."""
    if net.name in ("unet", "gpt"):
        return UNet() if net.name == "unet" else GPT(CODES)
    import timm

    size = {"img_size": net.pixels} if "vit" in net.name else {}
    return timm.create_model(net.name, **size, **net.settings)


def batch_of(net: TimmNet) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of random images, or texts, and its targets."""
    rng = np.random.default_rng(0)
    if net.name == "gpt":
        codes = rng.integers(0, CODES, (net.batch, net.pixels + 1))
        return codes[:, :-1], codes[:, 1:]
    images = rng.standard_normal((net.batch, 3, net.pixels, net.pixels), np.float32)
    return images, images[:, :1] if net.name == "unet" else rng.integers(0, CLASSES, len(images))


def train_ours(net: TimmNet, steps: int) -> Callable[[], list[float]]:
    """Return the function that trains and returns the seconds of each step."""
    x, y = batch_of(net)
    model = convert.from_torch(module_of(net), x.shape[1:])
    updater = ours.Adam(ADAM_RATE) if net.name == "gpt" else ours.SGD(RATE, momentum=MOMENTUM)
    model.compile(updater, "mse" if net.name == "unet" else "sparse_categorical_crossentropy")
    run, begun = TrainingStep.run, list[float]()

    def noted(*arguments: Any) -> Any:
        begun.append(time.process_time())
        return run(*arguments)

    def turn() -> list[float]:
        begun.clear()
        with patch.object(TrainingStep, "run", noted):
            model.fit(x, y, train_steps=steps + 1, progress=False, precision="bf16" if BF16 else None)
        return np.diff(begun).tolist()

    return turn


def train_torch(net: TimmNet, steps: int) -> Callable[[], list[float]]:
    """Return the function that trains the module in the channels-last format, as :func:`train_ours`."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    module = module_of(net).to(memory_format=torch.channels_last)
    x, y = map(torch.from_numpy, batch_of(net))
    updater: Any
    if net.name == "gpt":
        updater = torch.optim.Adam(module.parameters(), ADAM_RATE, fused=True)
    else:
        x = x.contiguous(memory_format=torch.channels_last)
        updater = torch.optim.SGD(module.parameters(), RATE, MOMENTUM, fused=True)

    def loss(module: nn.Module, batch: tuple[Any, Any]) -> Any:
        found, target = module(batch[0]), batch[1]
        if net.name == "unet":
            return functional.mse_loss(found, target)
        return functional.cross_entropy(found.flatten(0, -2), target.flatten())  # of each image, or code

    peer = Peer(module, updater, lambda count: (x, y), loss)
    peer = peer.compiled() if COMPILED else peer
    precision = torch.autocast("cpu", torch.bfloat16) if BF16 else None

    def turn() -> list[float]:
        begun = [time.process_time()]
        for _ in range(steps):
            peer.iterate((x, y), precision)
            begun.append(time.process_time())
        return np.diff(begun).tolist()

    return turn


def main(name: str, steps: int) -> None:
    """Print the figures of a net, turn by turn, as long as lines of the standard input ask for them."""
    library, _, net = name.partition("/")
    turn = (train_ours if library == "dsinga" else train_torch)(NETS[net], WARM_UP + steps)
    while True:
        print(json.dumps({"ms": 1e3 * statistics.median(turn()[WARM_UP:]), "mb": peak_megabytes()}), flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
