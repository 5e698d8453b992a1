"""The nets and updaters of the cases in PyTorch, in its fastest form of the same arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.benchmarks import nets
from tools.benchmarks.torch_translator import Translator

Batch = tuple[Tensor, ...]


class ScaledTanh(nn.Module):
    """SINGA's kSTanh."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 1.7159047·tanh(0.66666667·x)."""
        return 1.7159047 * torch.tanh(0.66666667 * x)


def convolved(filters: int, kernel: int, stride: int, pad: int) -> nn.Sequential:
    """Return a convolution without bias, and batch normalisation."""
    return nn.Sequential(nn.LazyConv2d(filters, kernel, stride, pad, bias=False), nn.LazyBatchNorm2d())


class Residual(nn.Module):
    """Two convolutions with batch normalisation and a shortcut, which is a convolution if there is a stride."""

    def __init__(self, filters: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(convolved(filters, 3, stride, 1), nn.ReLU(), convolved(filters, 3, 1, 1))
        self.shortcut = convolved(filters, 1, stride, 0) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of path and shortcut."""
        return torch.relu(self.path(x) + self.shortcut(x))


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "convolution": nn.LazyConv2d,
    "normalised": lambda *sizes: nn.Sequential(convolved(*sizes), nn.ReLU()),
    "residual": Residual,
    "max": nn.MaxPool2d,
    "mean": nn.AvgPool2d,
    "global mean": lambda: nn.AdaptiveAvgPool2d(1),
    "lrn": nn.LocalResponseNorm,
    "flatten": nn.Flatten,
    "dense": nn.LazyLinear,
    "dropout": nn.Dropout,
    "relu": nn.ReLU,
    "tanh": ScaledTanh,
}


class CharRNN(nn.Module):
    """One-hot characters, a GRU with 512 units and a fully connected layer, which predicts the next character."""

    def __init__(self, vocabulary: int = 101, hidden: int = 512):
        super().__init__()
        self.vocabulary, self.gru, self.out = vocabulary, nn.GRU(vocabulary, hidden), nn.Linear(hidden, vocabulary)

    def forward(self, codes: Tensor) -> Tensor:
        """Return (50·B, vocabulary) logits of (51, B) codes."""
        x = functional.one_hot(codes[:-1], self.vocabulary).float()
        return self.out(self.gru(x)[0].flatten(0, 1))


class Machine(nn.Module):
    """A restricted Boltzmann machine 784-1000, whose gradients are those of CD-1."""

    def __init__(self, visible: int = 784, hidden: int = 1000):
        super().__init__()
        self.w = nn.Parameter(0.1 * torch.randn(hidden, visible))
        self.a, self.b = nn.Parameter(torch.zeros(visible)), nn.Parameter(torch.zeros(hidden))

    @torch.no_grad()
    def learn(self, images: Tensor) -> float:
        """Set the gradients of params for bytes (B, 784); return the reconstruction error."""
        w, a, b, count = self.w, self.a, self.b, len(images)
        v = images.to(torch.float32).mul_(1 / 255)
        h = torch.addmm(b, v, w.t()).sigmoid_()
        v2 = torch.addmm(a, torch.bernoulli(h), w).sigmoid_()
        h2 = torch.addmm(b, v2, w.t()).sigmoid_()
        w.grad = torch.mm(h2.t(), v2).addmm_(h.t(), v, alpha=-1 / count, beta=1 / count)
        difference = v2 - v
        a.grad, b.grad = difference.sum(dim=0).div_(count), (h2 - h).sum(dim=0).div_(count)
        return float(difference.square_().sum()) / count


class Peer(NamedTuple):
    """A net, its updater, a function that makes a batch of a given size, and one that returns a batch's loss.

    The last one returns None where it has computed the gradients itself.
    """

    net: nn.Module
    updater: torch.optim.Optimizer
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], Tensor | None]
    clip: float = 0.0

    def compiled(self) -> Peer:
        """Return this peer with its loss compiled by TorchInductor."""
        return self._replace(loss=torch.compile(self.loss))

    def iterate(self, batch: Batch, precision: contextlib.AbstractContextManager[Any] | None = None) -> Tensor | None:
        """Run an iteration, its forward pass in a context; return the loss, if there is one."""
        self.updater.zero_grad(set_to_none=True)
        with precision or contextlib.nullcontext():
            loss = self.loss(self.net, batch)
        if loss is not None:
            loss.backward()
        if self.clip:
            nn.utils.clip_grad_value_(self.net.parameters(), self.clip)
        self.updater.step()
        return loss


def peer(name: str) -> Peer:
    """Return the peer of the net of a case."""
    if name == "char_rnn":
        net: nn.Module = CharRNN()
        return Peer(net, torch.optim.RMSprop(net.parameters(), lr=0.002, alpha=0.95), characters, class_loss, 5.0)
    if name == "transformer":
        net = Translator()
        updater = torch.optim.Adam(net.parameters(), 5e-4, (0.9, 0.98), fused=True)
        return Peer(net, updater, sentences, lambda net, batch: net.loss(*batch))
    if name == "rbm":
        machine = Machine()
        biases = {"params": [machine.a, machine.b], "weight_decay": 0.0}
        sgd = torch.optim.SGD([{"params": [machine.w]}, biases], lr=0.1, momentum=0.8, weight_decay=2e-4, fused=True)
        return Peer(machine, sgd, images((784,), 2), learn)
    described = nets.NETS[name]
    net = nn.Sequential(*(LAYERS[kind](*numbers) for kind, *numbers in described.layers))
    make = images(described.record, described.classes)
    net(as_floats(make(2)[0]))  # which makes the params
    net = net.to(memory_format=torch.channels_last)
    momentum, decay = described.momentum, described.decay
    sgd = torch.optim.SGD(net.parameters(), described.rate, momentum, weight_decay=decay, fused=True)
    return Peer(net, sgd, make, class_loss)


def images(shape: tuple[int, ...], classes: int) -> Callable[[int], Batch]:
    """Return a function that makes random images, as bytes, and labels."""
    return lambda count: (
        torch.randint(0, 256, (count, *shape), dtype=torch.uint8),
        torch.randint(0, classes, (count,)),
    )


def characters(count: int) -> Batch:
    """Return 51 steps of ``count`` streams of codes, and the codes that follow the first 50."""
    codes = torch.randint(0, 101, (51, count))
    return codes, codes[1:].flatten()


def sentences(count: int) -> Batch:
    """Return codes of both languages and labels."""
    return tuple(torch.from_numpy(codes).long() for codes in nets.sentences(count))


def as_floats(x: Tensor) -> Tensor:
    """Return images of bytes as floats with channels last, other arrays as they are."""
    return x.float().contiguous(memory_format=torch.channels_last) if x.dtype == torch.uint8 else x


def class_loss(net: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of a batch."""
    x, labels = batch
    return functional.cross_entropy(net(as_floats(x)), labels)


def learn(net: Machine, batch: Batch) -> None:
    """Compute the gradients of CD-1."""
    net.learn(batch[0])
