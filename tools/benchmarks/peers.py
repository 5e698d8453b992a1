"""The libraries that the benchmarks compare, and the forms in which each of them trains."""

from __future__ import annotations

import ctypes.util
from typing import NamedTuple


class Library(NamedTuple):
    """The module of this folder that measures a library, and the package that computes."""

    module: str
    package: str


class Peer(NamedTuple):
    """A form in which a library trains: in bfloat16 or float32, compiled by its compiler or not."""

    library: str
    bf16: bool = False
    compiled: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell the library's module, as tools.benchmarks.timing reads them."""
        return {name: "1" for name, is_set in zip(FLAGS, (self.bf16, self.compiled), strict=True) if is_set}


FLAGS = ("BENCHMARK_BF16", "BENCHMARK_COMPILED")
LIBRARIES = {
    "dsinga": Library("ours", "numpy"),
    "pytorch": Library("torch_peer", "torch"),
    "jax": Library("jax_peer", "jax"),
}
PEERS = {
    "dsinga": Peer("dsinga"),
    "dsinga bf16": Peer("dsinga", bf16=True),
    "PyTorch": Peer("pytorch"),
    "PyTorch compiled": Peer("pytorch", compiled=True),
    "PyTorch bf16": Peer("pytorch", bf16=True),
    "PyTorch compiled bf16": Peer("pytorch", bf16=True, compiled=True),
    "JAX": Peer("jax", compiled=True),
    "JAX bf16": Peer("jax", bf16=True, compiled=True),
}
"""Forms by their names in the tables. JAX's is always compiled."""


def allocator() -> str:
    """Return a memory allocator of this machine that PyTorch's guide recommends to preload, or ""."""
    return next(filter(None, map(ctypes.util.find_library, ("tcmalloc_minimal", "tcmalloc", "jemalloc"))), "")
