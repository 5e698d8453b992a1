"""The predicted memory of the workers that train a job, by its records and its updater."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.job import Job, Precision
from dsinga.job.enums import PRECISIONS
from dsinga.net import NeuralNet
from dsinga.net.worker_memory import Memory, worker_memory
from dsinga.ops import cpu_ops
from dsinga.reading.batch_reader import BatchReader
from dsinga.training import create_updater


def slots_and_bf16(job: Job) -> tuple[int, bool]:
    """Return how many arrays the updater of a job keeps for each param, and whether features are in bfloat16 here."""
    bf16 = job.precision is Precision.kBF16 and cpu_ops(PRECISIONS[job.precision]).has_bf16_features
    return len(create_updater(job.updater).state_slots), bf16


def training_memory(job: Job, locals_: Sequence[NeuralNet], reader: BatchReader) -> list[Memory]:
    """Return the memory of each worker of a group, in a process of its own; ``locals_`` are their training nets."""
    slots, bf16 = slots_and_bf16(job)
    return [
        worker_memory(local, slots, len(locals_), *reader.sizes(local), bf16, job.micro_batches) for local in locals_
    ]
