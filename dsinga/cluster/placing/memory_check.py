"""Refuses a net that cannot fit into the memory of any Dask worker, before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterable

from distributed import Client
from distributed.system import MEMORY_LIMIT

from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.engine import memory_check
from dsinga.engine.memory_check import in_gib as in_gib
from dsinga.net import NeuralNet


def check_memory(client: Client, nets: Iterable[NeuralNet], workers: int) -> None:
    """Raise UserError where a net needs more memory than this host, and any Dask worker, has."""
    limits = [info.get("memory_limit") or 0 for info in available_workers(client).values()]
    memory_check.check_memory(nets, workers, max([MEMORY_LIMIT, *limits]))
