"""Reads all records of a phase for a test: each once, in batches of nearly equal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsinga.job import Job, Phase
from dsinga.layers import Rows
from dsinga.net import cut_evenly
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.sampler import Sampler


def tests_all_records(job: Job, phase: Phase) -> bool:
    """Whether a training run evaluates ``phase`` over all its records, because the job gives no number of batches."""
    steps = {Phase.kVal: job.validate_steps, Phase.kTest: job.test_steps}
    return steps.get(phase) == 0


def readers_of_all_records(reader: BatchReader) -> list[BatchReader]:
    """Return one or two readers that together read each record once, in the order of the store.

    The batches of the first reader are one row larger than those of the second, as ``numpy.array_split`` cuts. No
    batch has more rows than those of ``reader``, so that the net needs no more memory, except where one worker of the
    group would be left without rows. Where there are fewer records than workers, one batch has each of them equally
    often, which leaves means as they are.
    """
    records, workers = len(reader), min(len(reader.parts), reader.batchsize)  # fewer rows where points are cut
    if records < workers:
        return [_resized(reader, records * -(-workers // records), 0)]
    batches = -(-records // reader.batchsize)
    if records // batches < workers:
        batches = records // max(workers, reader.batchsize) or 1
    size, larger = divmod(records, batches)
    readers = [_resized(reader, size + 1, 0)] if larger else []
    return [*readers, _resized(reader, size, larger * (size + 1))]


def count_batches(readers: Sequence[BatchReader]) -> list[int]:
    """Return how many batches each of the readers of :func:`readers_of_all_records` reads."""
    starts = [*(reader.sampler.skip for reader in readers), len(readers[0])]
    return [
        -(-(stop - start) // reader.batchsize) for reader, start, stop in zip(readers, starts, starts[1:], strict=False)
    ]


def _resized(reader: BatchReader, batchsize: int, start: int) -> BatchReader:
    """Return a reader of batches of ``batchsize`` rows from record ``start`` on, in the order of the store."""
    infos = {name: replace(info, batchsize=batchsize) for name, info in reader.infos.items()}
    sampler = Sampler(len(reader), batchsize, reader.sampler.seed, reader.sampler.chunk, shuffle=False, skip=start)
    return replace(reader, infos=infos, sampler=sampler, parts=_scale(reader.parts, batchsize), steps=0)


def _scale(parts: Sequence[Rows], total: int) -> tuple[Rows, ...]:
    """Return the rows of each worker of a batch of ``total`` rows, in the proportions of ``parts``, each at least 1."""
    sizes = [part.stop - part.start for part in parts]
    if total > parts[-1].total or max(sizes) - min(sizes) <= 1:
        return tuple(cut_evenly(total, len(parts)))
    # Each worker has one row; the others are shared out in proportion to the other rows of ``parts``.
    room, others = parts[-1].total - len(parts), total - len(parts)
    starts = [number + (part.start - number) * others // room for number, part in enumerate(parts)]
    return tuple(Rows(start, stop, total) for start, stop in zip(starts, [*starts[1:], total], strict=True))
