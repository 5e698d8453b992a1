"""Warnings of steps that teach nothing: after the end of the schedule, or with batch statistics of one number."""

from __future__ import annotations

import bisect
import logging
import math
from collections.abc import Callable

from dsinga.job import Job
from dsinga.layers.dense.batchnorm import BatchNorm
from dsinga.net import NeuralNet
from dsinga.training import schedule

_log = logging.getLogger(__name__)

LOW = 1e-3  # of the highest rate: a rate that is no higher changes hardly anything
SHARE = 0.05  # of the steps of a run: schedules that end with a run are this low in its very last steps, too
SAMPLES = 500  # steps at which the schedule is asked


def warn_of_unused_steps(job: Job, net: NeuralNet, begin: int) -> None:
    """Log a warning of each reason for which steps of a run of ``net``, from step ``begin`` on, cannot teach much."""
    if not job.updater.goes_on:
        _warn_of_schedule(job, begin)
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, BatchNorm) and not layer.use_global_stats:
            workers = job.cluster.nworkers_per_group if job.cluster and not layer.synchronized else 1
            rows = layer.shape[0] // max(job.micro_batches * workers, 1)
            if rows * math.prod(layer.shape[2:]) == 1:
                _log.warning(
                    "layer %r normalises each channel over the one number that %s of one row has, so that its "
                    "feature is the same for all records in training: give batches of more rows",
                    layer.name,
                    "a batch" if workers == 1 else "a worker's part of a batch",
                )


def _warn_of_schedule(job: Job, begin: int) -> None:
    earlier, last = job.updater.earlier_steps, job.train_steps
    if last - begin < 1 / SHARE:
        return
    rate = schedule(job.updater.learning_rate)
    first = low_from(lambda step: rate(step + earlier), -earlier, begin, last)
    if last - first > SHARE * (last - begin):
        where = f"from step {first} on" if first > begin else "in all steps"
        after = f", of which {earlier} steps are those of earlier training" if earlier else ""
        _log.warning(
            "the learning rate is near 0 (%.2g) %s, of %d: its schedule is shorter than the run%s; give the schedule "
            "as many steps as are trained in all, or begin it anew, as compile does",
            rate(last - 1 + earlier),
            where,
            last,
            after,
        )


def low_from(rate: Callable[[int], float], origin: int, begin: int, last: int) -> int:
    """Return the first step, from ``begin`` on, from which a rate stays as it is, near 0; ``last`` where there is none.

    It is near 0 compared with the highest one since the step ``origin``. A rate that still moves is none.
    """
    end = rate(last - 1)
    highest = max(rate(step) for step in range(origin, last, max(1, (last - origin) // SAMPLES)))
    if end > LOW * highest or highest <= 0:
        return last
    steps = range(begin, last, max(1, (last - begin) // SAMPLES))
    place = next((place for place in range(len(steps) - 1, -1, -1) if rate(steps[place]) != end), -1)
    if place < 0:
        return begin
    low, high = steps[place], steps[place + 1] if place + 1 < len(steps) else last
    return low + bisect.bisect_left(range(low, high), True, key=lambda step: rate(step) == end)
