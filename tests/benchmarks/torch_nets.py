"""The nets and updaters of the cases in PyTorch, in its fastest form of the same arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

LRN = {"alpha": 5e-5, "beta": 0.75, "k": 1.0}
Batch = tuple[torch.Tensor, torch.Tensor]


class ScaledTanh(nn.Module):
    """SINGA's kSTanh."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return 1.7159047·tanh(0.66666667·x)."""
        return 1.7159047 * torch.tanh(0.66666667 * x)


class Block(nn.Module):
    """Two convolutions with batch normalisation and a shortcut, which is a convolution if shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        project = stride > 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if project
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rectified sum of path and shortcut."""
        return torch.relu(self.path(x) + self.shortcut(x))


class CharRNN(nn.Module):
    """One-hot characters, a GRU with 512 units and a fully connected layer, which predicts the next character."""

    def __init__(self, vocabulary: int = 101, hidden: int = 512):
        super().__init__()
        self.vocabulary, self.gru, self.out = vocabulary, nn.GRU(vocabulary, hidden), nn.Linear(hidden, vocabulary)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return (50·B, vocabulary) logits of (51, B) codes."""
        x = nn.functional.one_hot(codes[:-1], self.vocabulary).float()
        return self.out(self.gru(x)[0].flatten(0, 1))


class Peer(NamedTuple):
    """A net, its updater, and a function that makes a batch of a given size: (records, labels)."""

    net: nn.Module
    updater: torch.optim.Optimizer
    batch: Callable[[int], Batch]


def peer(name: str) -> Peer:
    """Return the peer of the net of a case."""
    net = NETS[name]().to(memory_format=torch.channels_last)
    params = net.parameters()
    match name:
        case "cifar10":
            return Peer(net, torch.optim.SGD(params, lr=0.001, momentum=0.9, weight_decay=0.004), images(3, 32, 10))
        case "mnist":
            return Peer(net, torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=5e-4), images(1, 28, 10))
        case "mlp":
            return Peer(net, torch.optim.SGD(params, lr=0.001), images(1, 28, 10))
        case "alexnet":
            return Peer(net, torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=5e-4), images(3, 227, 1000))
        case "resnet":
            return Peer(net, torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4), images(3, 32, 10))
    return Peer(net, torch.optim.RMSprop(params, lr=0.002, alpha=0.95), characters)


def images(channels: int, size: int, classes: int) -> Callable[[int], Batch]:
    """Return a function that makes random images, as bytes, and labels."""
    return lambda count: (
        torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8),
        torch.randint(0, classes, (count,)),
    )


def characters(count: int) -> Batch:
    """Return 51 steps of ``count`` streams of codes, and the codes that follow the first 50."""
    codes = torch.randint(0, 101, (51, count))
    return codes, codes[1:].flatten()


def loss_of(net: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch; bytes are converted to floats with channels last."""
    x, labels = batch
    if x.dtype == torch.uint8:
        x = x.float().contiguous(memory_format=torch.channels_last)
    return nn.functional.cross_entropy(net(x), labels)


def _cifar10() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2), nn.ReLU(), nn.LocalResponseNorm(3, **LRN),
        nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2), nn.LocalResponseNorm(3, **LRN),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2), nn.Flatten(), nn.Linear(576, 10),
    )  # fmt: skip


def _mnist() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip


def _mlp() -> nn.Module:
    widths = [784, 2500, 2000, 1500, 1000, 500, 10]
    layers = [nn.Flatten()]
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), ScaledTanh()]
    return nn.Sequential(*layers[:-1])


def _alexnet() -> nn.Module:
    lrn = {"alpha": 1e-4, "beta": 0.75, "k": 1.0}
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5, **lrn),
        nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5, **lrn),
        nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(4096, 1000),
    )  # fmt: skip


def _resnet(blocks: int = 3) -> nn.Module:
    def body() -> Iterator[nn.Module]:
        inputs = 16
        for outputs, stride in ((16, 1), (32, 2), (64, 2)):
            for block in range(blocks):
                yield Block(inputs, outputs, stride if block == 0 else 1)
                inputs = outputs

    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *body(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


NETS: dict[str, Callable[[], nn.Module]] = {
    "cifar10": _cifar10,
    "mnist": _mnist,
    "mlp": _mlp,
    "alexnet": _alexnet,
    "resnet": _resnet,
    "char_rnn": CharRNN,
}
