"""Checks that a run fits in the Dask workers' memory; and the planner's hook for ``partition: auto``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from distributed import Client
from distributed.system import MEMORY_LIMIT

from dsinga.cluster.dask.dask_workers import available_workers, host, process
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.partitioned import LayerCut
from dsinga.cutting.turns import wait_for_each_other
from dsinga.cutting.worker_memory import FIXED, team_memory, training_memory
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


def worker_limit(client: Client, placement: Placement, fixed: int, joined: bool = False) -> int:
    """Return the bytes of memory that every worker of a run, or team of ``joined`` blocks, may use.

    Workers in one process share its limit; ``fixed`` bytes of it count once.
    """
    infos, groups = available_workers(client), placement.workers
    together = Counter(
        process(addresses[actor.start])
        for group, addresses in enumerate(groups)
        for actor in placement.actors(group, joined)
    )
    on_host = Counter(host(address) for address in together)
    limits = {process(address): info.get("memory_limit") or 0 for address, info in infos.items()}
    shares = [
        fixed + ((limits.get(address) or MEMORY_LIMIT // on_host[host(address)]) - fixed) // count
        for address, count in together.items()
    ]
    return min(shares)


def warn_of_memory(job: Job, opened: OpenedJob, config: WorkerConfig, client: Client, placement: Placement) -> None:
    """Log a warning if a worker is predicted to need more memory than its Dask worker allows."""
    if job.train_one_batch.alg not in PREDICTED or job.gpu:
        return
    net = config.nets[Phase.kTrain]
    memories = training_memory(job, net.locals, opened.readers[Phase.kTrain])
    actors = placement.actors(0, config.has_teams)
    at_once = job.blocks_at_once if config.has_teams and wait_for_each_other(net) else 1
    needed = max(team_memory(memories[actor.start : actor.stop], at_once).peak for actor in actors)
    limit = worker_limit(client, placement, FIXED, config.has_teams)
    if needed > limit:
        _log.warning(
            "a worker needs about %s of memory, but may use %s; micro_batches, neuralnet { recompute: ... } and "
            "neuralnet { partition: auto } lower it, as dsinga plan --memory shows",
            as_size(needed), as_size(limit),
        )  # fmt: skip
