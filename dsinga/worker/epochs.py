"""Converts a job's epochs to steps; this needs the number of records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from dsinga.job import Job, Phase, check
from dsinga.worker.batch_reader import BatchReader, open_batch_reader


def resolve_epochs(job: Job, roots: Sequence[str] = ()) -> Job:
    """Return the job with the ``train_steps`` that its ``epochs`` are, or the job itself if it has no ``epochs``.

    An epoch of N records in batches of B rows, those of all worker groups together, is N/B steps; the last of E epochs
    ends with step ceil(E·N/B). Raises UserError where the job also has other ``train_steps``, and for what is wrong
    with the job or its training records.
    """
    if not job.epochs:
        return job
    check(job)
    sizes = [len(layer.store_conf.batchsize) for layer in job.neuralnet.layer if layer.store_conf]
    groups = job.cluster.nworker_groups if job.cluster else 1
    # How the rows of a batch are cut does not matter here, but uneven sizes are one for each worker.
    reader = open_batch_reader(job, Phase.kTrain, max(sizes, default=1), roots, groups)
    steps = math.ceil(job.epochs * steps_per_epoch(reader))
    if job.train_steps not in (0, steps):
        raise job.error(
            f"the job has train_steps: {job.train_steps} and epochs: {job.epochs}, which are {steps} steps of these "
            "records; give one of the two",
            "epochs",
        )
    return job.replace(train_steps=steps)


def steps_per_epoch(reader: BatchReader) -> Fraction:
    """Return how many steps it takes until all worker groups together have read as many rows as there are records."""
    return Fraction(len(reader), reader.batchsize * reader.groups)


def epoch_at(step: int, epoch: Fraction) -> float:
    """Return the number of epochs that are done after ``step`` steps, for people to read: 3 at the end of the third.

    Between ends it has two decimals. ``epoch`` is the number of steps of an epoch.
    """
    done = int(step / epoch)
    return done if math.ceil(done * epoch) == step else round(float(step / epoch), 2)
