"""Checks that a run fits in the Dask workers' memory; and the planner's hook for ``partition: auto``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from distributed import Client
from distributed.system import MEMORY_LIMIT

from dsinga.cluster.dask.dask_workers import available_workers, host, process
from dsinga.cluster.dask.placement import Placement
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.partitioned import LayerCut
from dsinga.cutting.worker_memory import FIXED, training_memory
from dsinga.job import AlgType, Job, Phase
from dsinga.net import NeuralNet, neuralnet
from dsinga.net.layer_cost import as_size
from dsinga.passes.opened_job import OpenedJob
from dsinga.training import Updater

_log = logging.getLogger(__name__)

PREDICTED = (AlgType.kBP, AlgType.kBPTT)  # the planner predicts the memory of these algorithms


class ChooseTraining(Protocol):
    """The type of the hook ``choose_training``: the planner chooses the cuts of a run."""

    def __call__(
        self, job: Job, topology: Topology, opened: OpenedJob, updater: Updater, client: Client, placement: Placement
    ) -> tuple[Job, Topology, dict[str, LayerCut] | None]:
        """Return the job, topology and cuts that ``partition: auto`` chooses; None as cuts for one worker."""


def check_memory(client: Client, nets: Iterable[NeuralNet], workers: int) -> None:
    """Raise UserError if a net needs more memory than this host and any Dask worker have."""
    limits = [info.get("memory_limit") or 0 for info in available_workers(client).values()]
    neuralnet.check_memory(nets, workers, max([MEMORY_LIMIT, *limits]))


def worker_limit(client: Client, placement: Placement, fixed: int) -> int:
    """Return the bytes of memory that every worker of a run may use.

    Workers in one process share its limit; ``fixed`` bytes of it count once.
    """
    infos = available_workers(client)
    together = Counter(process(address) for group in placement.workers for address in group)
    on_host = Counter(host(address) for address in together)
    limits = {process(address): info.get("memory_limit") or 0 for address, info in infos.items()}
    shares = [
        fixed + ((limits.get(address) or MEMORY_LIMIT // on_host[host(address)]) - fixed) // count
        for address, count in together.items()
    ]
    return min(shares)


def warn_of_memory(
    job: Job, opened: OpenedJob, locals_: Sequence[NeuralNet], client: Client, placement: Placement
) -> None:
    """Log a warning if a worker is predicted to need more memory than its Dask worker allows."""
    if job.train_one_batch.alg not in PREDICTED or job.gpu:
        return
    needed = max(memory.peak for memory in training_memory(job, locals_, opened.readers[Phase.kTrain]))
    limit = worker_limit(client, placement, FIXED)
    if needed > limit:
        _log.warning(
            "a worker needs about %s of memory, but may use %s; micro_batches, neuralnet { recompute: ... } and "
            "neuralnet { partition: auto } lower it, as dsinga plan --memory shows",
            as_size(needed), as_size(limit),
        )  # fmt: skip
