"""The cases of the benchmarks: nets, batch sizes, workers, and goals."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A net, the batch size of each worker, and the number of workers, which are processes if there are several.

    ``goal`` is the ratio to reach of the iteration time to that of the fastest peer.
    """

    net: str
    batch: int
    goal: float
    workers: int = 1
    peers: tuple[str, ...] = ("pytorch",)


BOTH = ("pytorch", "tensorflow")
ON_SENTENCES = ("transformer",)  # nets that random images cannot train
CASES = {
    "cifar10-64": Case("cifar10", 64, 0.62, peers=BOTH),
    "cifar10-128": Case("cifar10", 128, 0.62, peers=BOTH),
    "mnist-convnet": Case("mnist", 64, 0.65, peers=BOTH),
    "mnist-mlp": Case("mlp", 64, 0.65, peers=BOTH),
    "alexnet": Case("alexnet", 16, 0.95),
    "resnet": Case("resnet", 64, 0.9),
    "char-rnn": Case("char_rnn", 50, 0.9),
    "transformer": Case("transformer", 64, 0.9),
    "rbm": Case("rbm", 100, 1.0),
    "cifar10-two": Case("cifar10", 64, 0.5, workers=2),
    "mnist-mlp-two": Case("mlp", 64, 0.7, workers=2),
}

GPU_CASES = {
    "alexnet": Case("alexnet", 128, 1.0),
    "cifar10": Case("cifar10", 128, 0.7),
    "resnet": Case("resnet", 128, 1.0),
    "char-rnn": Case("char_rnn", 50, 1.0),
}
"""Cases for one GPU; the peer is PyTorch in eager mode on the same GPU."""
