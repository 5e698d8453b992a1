"""What is measured: nets, batch sizes, workers, and the goals, as time of dsinga over time of the best peer."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A net at a batch size for each worker, trained by so many workers; several are processes.

    ``goal`` is the ratio that this project wants of the time of an iteration to that of the fastest peer.
    """

    net: str
    batch: int
    goal: float
    workers: int = 1
    peers: tuple[str, ...] = ("pytorch",)


BOTH = ("pytorch", "tensorflow")
CASES = {
    "cifar10-64": Case("cifar10", 64, 0.62, peers=BOTH),
    "cifar10-128": Case("cifar10", 128, 0.62, peers=BOTH),
    "mnist-convnet": Case("mnist", 64, 0.65, peers=BOTH),
    "mnist-mlp": Case("mlp", 64, 0.65, peers=BOTH),
    "alexnet": Case("alexnet", 16, 0.95),
    "resnet": Case("resnet", 64, 0.9),
    "char-rnn": Case("char_rnn", 50, 0.9),
    "cifar10-two": Case("cifar10", 64, 0.5, workers=2),
    "mnist-mlp-two": Case("mlp", 64, 0.7, workers=2),
}

GPU_CASES = {
    "alexnet": Case("alexnet", 128, 1.0),
    "cifar10": Case("cifar10", 128, 0.7),
    "resnet": Case("resnet", 128, 1.0),
    "char-rnn": Case("char_rnn", 50, 1.0),
}
"""On one GPU, beside PyTorch in eager mode on the same one."""
