"""``partition: auto`` of a job that one worker trains in this process: fits it into the memory that there is."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dsinga.engine import local_job
from dsinga.job import AlgType, Job, Phase, check
from dsinga.net.memory_check import as_size
from dsinga.passes.processor import PRECISIONS, cpu_ops
from dsinga.planner.fitting import NetVariants, fit_or_refuse
from dsinga.reading.batch_reader import open_batch_reader
from dsinga.training import create_updater

_log = logging.getLogger(__name__)


def fit_to_memory(job: Job, roots: Sequence[str]) -> Job:
    """Return the job with the micro-batches and the recomputation that the memory of this process needs.

    A job of kCD is returned as it is. Raises UserError where the net cannot be trained
    in the memory.
    """
    if job.train_one_batch.alg is AlgType.kCD:
        return job
    check(job)
    limit, slots = local_job.memory_limit(), len(create_updater(job.updater).state_slots)
    bf16 = cpu_ops(PRECISIONS[job.precision]).has_bf16_features
    reader = open_batch_reader(job, Phase.kTrain, 1, roots)
    found = fit_or_refuse(NetVariants.of(job, reader, slots, bf16), limit)
    fitted = found.applied(job)
    if fitted != job:
        _log.info("partition: auto trains with %s, to fit into %s of memory", found.words(), as_size(limit))
    return fitted
