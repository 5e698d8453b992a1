"""The cases of the benchmarks: nets, batch sizes, workers, and goals."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A net, the batch size of each worker, and the number of workers, which are processes if there are several.

    ``goal`` is the ratio to reach of the iteration time to that of the fastest peer. Without ``synchronized``, batch
    normalisation takes the statistics of each worker's rows, as DDP does.
    """

    net: str
    batch: int
    goal: float
    workers: int = 1
    synchronized: bool = True
    peers: tuple[str, ...] = ("pytorch",)


ALL = ("pytorch", "jax")
ON_SENTENCES = ("transformer",)  # nets that random images cannot train
CASES = {
    "cifar10-64": Case("cifar10", 64, 0.62, peers=ALL),
    "cifar10-128": Case("cifar10", 128, 0.62, peers=ALL),
    "mnist-convnet": Case("mnist", 64, 0.65, peers=ALL),
    "mnist-mlp": Case("mlp", 64, 0.65, peers=ALL),
    "alexnet": Case("alexnet", 16, 0.95, peers=ALL),
    "resnet": Case("resnet", 64, 0.9, peers=ALL),
    "char-rnn": Case("char_rnn", 50, 0.9, peers=ALL),
    "transformer": Case("transformer", 64, 0.9),
    "rbm": Case("rbm", 100, 1.0),
    "cifar10-two": Case("cifar10", 64, 0.5, workers=2),
    "mnist-mlp-two": Case("mlp", 64, 0.7, workers=2),
    "resnet-two": Case("resnet", 64, 0.8, workers=2),
    "resnet-two-rows": Case("resnet", 64, 0.8, workers=2, synchronized=False),
    "alexnet-two": Case("alexnet", 16, 0.95, workers=2),
}

GPU_CASES = {
    "cifar10": Case("cifar10", 128, 0.8),
    "resnet": Case("resnet", 128, 0.8),
    "char-rnn": Case("char_rnn", 50, 0.8),
    "alexnet": Case("alexnet", 128, 0.8),
}
"""Cases for one GPU; the peer is the fastest form of PyTorch on the same GPU."""
