"""CIFAR-10 with augmentation: test accuracy of ResNet-20 and seconds of training, beside PyTorch; images a second.

    python -m tools.benchmarks.accuracy_augmentation [--records 40000] [--epochs 15] [--seeds 1] [--no-torch]
    python -m tools.benchmarks.accuracy_augmentation --speed

dsinga and PyTorch train in turn, with one thread, on the same images: batches of 128, SGD with momentum 0.9 and L2
0.0001, the rate 0.1, a tenth of it after half the steps and a hundredth after three quarters; crops after 4 pixels of
padding, flips, and squares of a quarter of the image's area that become gray. Order, crops and initial params differ;
both initialise convolutions by He. The accuracy is that on the first 1,000 test images: its standard error is 1%.

``--speed`` prints how many images a second a reading thread augments and, with as many threads, ResNet-20 trains on.
The raw files are looked for in the folder of real data: DSINGA_DATA, or ../shared/data beside the checkout.
"""

from __future__ import annotations

import lzma
import os
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import dsinga
from dsinga import nn
from dsinga.addons.augmentation import create_augmentations
from dsinga.job import Job, StoreConf
from dsinga.models import resnet
from tools.benchmarks.torch_nets import Residual, convolved

RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "cifar10"
MEAN, STD = 120.7, 64.2  # of all pixels
BATCH, ROW = 128, 1 + 3 * 32 * 32
AUGMENT = [
    nn.augment.RandomCrop(pad=4),
    nn.augment.RandomFlip(),
    nn.augment.RandomErasing(0.5, scale=(0.25, 0.25), ratio=(1, 1), value=121),
]
Images = tuple[np.ndarray, np.ndarray]


def read(name: str) -> Images:
    """Return the images (n, 3, 32, 32) uint8 and labels of a raw file."""
    rows = np.frombuffer(lzma.decompress((RAW / f"{name}.bin.xz").read_bytes()), np.uint8).reshape(-1, ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def rates(steps: int) -> dict[int, float]:
    """Return the learning rate from each of these steps on."""
    return {0: 0.1, steps // 2: 0.01, steps * 3 // 4: 0.001}


def job(steps: int, seed: int, augment: list[Any]) -> Job:
    """Return the job of dsinga."""
    plain = resnet(20, augment=False, train_steps=steps, seed=seed, disp_freq=steps, test_freq=0)
    store = StoreConf(batchsize=[BATCH], mean_value=MEAN, std_value=STD, augment=augment)
    layers = [each.replace(store_conf=store) if each.store_conf else each for each in plain.neuralnet.layer]
    step, step_lr = (list(column) for column in zip(*rates(steps).items(), strict=True))
    rate = {"type": "kFixedStep", "fixedstep_conf": {"step": step, "step_lr": step_lr}}
    updater = plain.updater.replace(learning_rate=dsinga.job.LRGenConf(**rate))  # type: ignore[arg-type]
    return plain.replace(neuralnet=plain.neuralnet.replace(layer=layers), updater=updater)


def ours(train: Images, test: Images, steps: int, seed: int) -> tuple[float, float]:
    """Return test accuracy and seconds of dsinga."""
    conf = job(steps, seed, AUGMENT)
    result = dsinga.train(conf, data={"train": train}, workers=1, progress=False)
    accuracy = dsinga.evaluate(conf, result.params, data={"test": test})["accuracy"]
    return accuracy, result.history[-1]["time"]


def torch_net() -> torch.nn.Module:
    """Return the same net, with convolutions and the last layer initialised as in dsinga."""
    blocks = [Residual(size, stride) for size, first in ((16, 1), (32, 2), (64, 2)) for stride in (first, 1, 1)]
    ends = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    net = torch.nn.Sequential(convolved(16, 3, 1, 1), torch.nn.ReLU(), *blocks, *ends)
    net(torch.zeros(2, 3, 32, 32))
    net = net.to(memory_format=torch.channels_last)
    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.kaiming_normal_(module.weight)
    return net


def torch_augment(x: Tensor) -> Tensor:
    """Return a batch (n, 3, 32, 32) uint8 cropped, flipped and erased at random."""
    count, places = len(x), torch.arange(32)
    padded = functional.pad(x, (4, 4, 4, 4))
    tops, lefts, erase_tops, erase_lefts = (
        torch.randint(0, 9, (2, count)).unbind() + torch.randint(0, 17, (2, count)).unbind()
    )
    rows, columns = tops[:, None] + places, lefts[:, None] + places
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    x = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
    inside = [(places >= start[:, None]) & (places < start[:, None] + 16) for start in (erase_tops, erase_lefts)]
    box = inside[0][:, :, None] & inside[1][:, None] & (torch.rand(count, 1, 1) < 0.5)
    return x.masked_fill(box[:, None], 121)


def theirs(train: Images, test: Images, steps: int, seed: int) -> tuple[float, float]:
    """Return test accuracy and seconds of PyTorch."""
    torch.manual_seed(seed)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    net, (x, y) = torch_net(), map(torch.tensor, train)
    sgd = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=0.0001)
    began, order = time.perf_counter(), torch.randperm(len(x))
    for step in range(steps):
        sgd.param_groups[0]["lr"] = [rate for start, rate in rates(steps).items() if start <= step][-1]
        if len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(x))])
        rows, order = order[:BATCH], order[BATCH:]
        batch = ((torch_augment(x[rows]) - MEAN) / STD).contiguous(memory_format=torch.channels_last)
        sgd.zero_grad()
        functional.cross_entropy(net(batch), y[rows]).backward()
        sgd.step()
    seconds = time.perf_counter() - began
    net.eval()
    with torch.no_grad():
        scores = net((torch.tensor(test[0]) - MEAN) / STD)
    return (scores.argmax(1) == torch.tensor(test[1])).float().mean().item(), seconds


def images_a_second(shape: tuple[int, ...], augment: list[Any], batch: int) -> float:
    """Return how many images of a shape one thread augments in a second: the median of 9 batches."""
    conf = StoreConf(augment=augment)
    chain = create_augmentations("data", conf, shape, np.uint8, seed=0, training=True)
    assert chain is not None
    x = np.random.default_rng(0).integers(0, 256, (batch + chain.partners, *shape), dtype=np.uint8)
    numbers, times = np.arange(len(x)), []
    for epoch in range(10):
        given = x.copy()
        began = time.perf_counter()
        chain.augment(given, None, numbers, np.full(len(x), epoch))
        times.append(time.perf_counter() - began)
    return batch / sorted(times[1:])[4]


def print_speed() -> None:
    """Print images a second of each augmentation, and of the training of ResNet-20 with and without augmentation."""
    augment = nn.augment
    small = {
        "crop and flip": AUGMENT[:2],
        "crop, flip and erasing": AUGMENT,
        "rotation": [augment.RandomRotation()],
        "colours and hue": [augment.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        "RandAugment": [augment.RandAugment()],
        "mixup": [augment.Mixup()],
        "CutMix": [augment.CutMix()],
    }
    large = {
        "resized crop 224": [augment.RandomResizedCrop(224)],
        "resized crop 224, flip, lighting": [
            augment.RandomResizedCrop(224),
            augment.RandomFlip(),
            augment.Lighting(),
        ],
        "crop 224 and flip": [augment.RandomCrop(224), augment.RandomFlip()],
    }
    for name, which in small.items():
        click.echo(f"{name}, 3 x 32 x 32: {images_a_second((3, 32, 32), which, 128):,.0f} images/s")
    for name, which in large.items():
        click.echo(f"{name}, from 3 x 256 x 256: {images_a_second((3, 256, 256), which, 32):,.0f} images/s")
    x = np.random.default_rng(0).integers(0, 256, (2048, 3, 32, 32), dtype=np.uint8)
    for name, which in {"without augmentation": [], "with crop, flip and erasing": AUGMENT}.items():
        conf = job(40, 1, which).replace(disp_freq=8)
        result = dsinga.train(conf, data={"train": (x, np.arange(2048) % 10)}, workers=1, progress=False)
        first, last = result.history[0], result.history[-1]
        speed = (last["step"] - first["step"]) * BATCH / (last["time"] - first["time"])
        click.echo(f"ResNet-20 {name}: {speed:,.0f} images/s")


@click.command()
@click.option("--records", default=40_000, help="The number of training images, up to 40,000.")
@click.option("--epochs", default=15, help="How often they are read.")
@click.option("--seeds", default=1, help="The number of seeds.")
@click.option("--torch/--no-torch", "with_torch", default=True, help="Whether PyTorch trains, too.")
@click.option("--speed", is_flag=True, help="Print images a second instead.")
def main(records: int, epochs: int, seeds: int, with_torch: bool, speed: bool) -> None:
    """Train ResNet-20 on CIFAR-10 with augmentation, beside PyTorch."""
    if speed:
        print_speed()
        return
    parts = [read(f"data_batch_{number}") for number in range(1, 1 + -(-records // 10_000))]
    train = np.concatenate([x for x, _ in parts])[:records], np.concatenate([y for _, y in parts])[:records]
    test, steps = read("test_batch_first1000"), records * epochs // BATCH
    click.echo(f"{records:,} images, {epochs} epochs, {steps} steps of {BATCH}")
    for seed in range(1, 1 + seeds):
        for name, run in [("dsinga", ours), *([("PyTorch", theirs)] if with_torch else [])]:
            accuracy, seconds = run(train, test, steps, seed)
            rate = steps * BATCH / seconds
            click.echo(f"seed {seed}  {name:7}  accuracy {accuracy:.3f}  {seconds:.0f} s, {rate:,.0f} images/s")


if __name__ == "__main__":
    main()
