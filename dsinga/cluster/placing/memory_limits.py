"""The memory that the workers of a run may use, and whether the run fits into it."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence

from distributed import Client
from distributed.system import MEMORY_LIMIT

from dsinga.cluster.dask.dask_workers import available_workers, host, process
from dsinga.cluster.dask.placement import Placement
from dsinga.job import AlgType, Job, Phase, Precision
from dsinga.job.enums import PRECISIONS
from dsinga.job.topology import Topology
from dsinga.net import NeuralNet
from dsinga.net.cut import LayerCut
from dsinga.net.memory_check import as_size
from dsinga.ops.processor import cpu_ops
from dsinga.training import Updater
from dsinga.worker.configure import OpenedJob

_log = logging.getLogger(__name__)

PREDICTED = (AlgType.kBP, AlgType.kBPTT)  # the algorithms whose memory the planner predicts


def worker_limit(client: Client, placement: Placement, fixed: int) -> int:
    """Return the bytes of memory that each worker of a run may use, at the place where that is least.

    Workers in one process share its limit, in which ``fixed`` bytes are for all of them; Dask workers without a limit
    share the memory of their host.
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


def choose_training(
    job: Job, topology: Topology, opened: OpenedJob, updater: Updater, client: Client, placement: Placement
) -> tuple[Job, Topology, dict[str, LayerCut] | None]:
    """Return a job, its topology and its cuts, as ``partition: auto`` chooses them; None for one worker.

    The job has the micro-batches and the recomputation that the memory of its workers needs. Raises UserError where the
    net cannot be trained in it.
    """
    from dsinga.cluster.placing.automatic import choose_cuts  # only partition: auto needs the planner
    from dsinga.planner.fitting import NetVariants, fit_or_refuse, whole_job, with_fit
    from dsinga.planner.memory import FIXED

    is_predicted = job.train_one_batch.alg in PREDICTED and not job.gpu
    limit = worker_limit(client, placement, FIXED) if is_predicted else sys.maxsize
    variants = NetVariants.of(job, opened.readers[Phase.kTrain])
    if topology.workers == 1:
        return with_fit(job, fit_or_refuse(variants, limit), limit), topology, None
    net = opened.nets[Phase.kTrain] if whole_job(job) == job else variants.net(1, 0)
    return choose_cuts(job, topology, net, updater, client, placement, variants, limit)


def warn_of_memory(
    job: Job, opened: OpenedJob, locals_: Sequence[NeuralNet], updater: Updater, client: Client, placement: Placement
) -> None:
    """Log a warning where a worker is predicted to need more memory than its Dask worker lets it use.

    ``locals_`` are the training nets of the workers of a group.
    """
    from dsinga.planner.memory import FIXED, worker_memory

    if job.train_one_batch.alg not in PREDICTED or job.gpu:
        return
    reader, slots = opened.readers[Phase.kTrain], len(updater.state_slots)
    bf16 = job.precision is Precision.kBF16 and cpu_ops(PRECISIONS[job.precision]).has_bf16_features
    needed = max(
        worker_memory(local, slots, len(locals_), *reader.sizes(local), bf16, job.micro_batches).peak
        for local in locals_
    )
    limit = worker_limit(client, placement, FIXED)
    if needed > limit:
        _log.warning(
            "a worker needs about %s of memory, but may use %s; micro_batches, neuralnet { recompute: ... } and "
            "neuralnet { partition: auto } lower it, as dsinga plan --memory shows",
            as_size(needed), as_size(limit),
        )  # fmt: skip
