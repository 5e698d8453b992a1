"""Reads batches: each worker's rows in training, every record once in evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data import RecordSource, kept_bytes
from dsinga.job import Job, Phase
from dsinga.job.epochs import Epochs
from dsinga.layers import Layer, RecordInfo, Records, Rows
from dsinga.layers.interface.context import cut_evenly, rows_of_batch
from dsinga.net import NeuralNet, Stage
from dsinga.reading.sampler import Run, Sampler


@dataclass(frozen=True)
class BatchReader:
    """Reads the batches of training, validation or test, for any worker of a group.

    All input layers of a phase read the same row numbers, so that an image and its text stay together.

    Attributes:
        infos: what each layer's net needs to know about its store.
        sampler: the order of the records.
        parts: each worker's rows of a batch, or of the first micro-batch.
        groups: the number of worker groups that share the stores.
        offset: the position of step 0 in the order of the records; see :class:`Epochs`.
    """

    stores: Mapping[str, RecordSource]
    infos: Mapping[str, RecordInfo]
    sampler: Sampler
    parts: tuple[Rows, ...]
    groups: int = 1
    micro_batches: int = 1
    augmentations: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    steps: int = 0

    @property
    def epochs(self) -> Epochs:
        """Converts between steps and epochs, over all worker groups."""
        return Epochs(len(self), self.batchsize * self.groups, self.offset)

    @property
    def is_in_memory(self) -> bool:
        """Whether all records are numpy arrays in this process."""
        return all(column.in_memory for store in self.stores.values() for column in store.columns)

    @property
    def batchsize(self) -> int:
        """How many rows a worker group's batch has."""
        return self.parts[-1].total * self.micro_batches

    def stop(self, earlier_steps: int = 0) -> int | None:
        """Return the number of the first micro-batch that training does not need; None without an end."""
        return (earlier_steps + self.steps) * self.micro_batches if self.steps else None

    @property
    def shared_stores(self) -> Mapping[str, RecordSource]:
        """The stores that all processes read, by input layer; {} if each site has its own."""
        return self.stores

    def of_group(self, group: int) -> BatchReader:
        """Return the reader of a worker group: this one, unless groups have their own stores."""
        return self

    def __len__(self) -> int:
        return min(len(store) for store in self.stores.values())

    def micro_batch(self, number: int) -> Rows | None:
        """Return which rows of a batch a micro-batch has; None if batches are not divided."""
        size = self.parts[-1].total
        return None if self.micro_batches == 1 else Rows(number * size, (number + 1) * size, self.batchsize)

    def rows(self, worker: int, number: int = 0) -> Rows:
        """Return which rows of a micro-batch a worker computes."""
        micro_batch = self.micro_batch(number)
        return self.parts[worker] if micro_batch is None else rows_of_batch(self.parts[worker], micro_batch)

    def in_regions(self, layers: Iterable[Layer]) -> BatchReader:
        """Return a reader of only the points that a worker needs."""
        stores = {
            layer.name: self.stores[layer.name].in_region(*layer.regions_read())
            for layer in layers
            if layer.name not in self.augmentations
        }
        return replace(self, stores={**self.stores, **stores})

    def read_augmented(self, layer: str, batch: int, rows: Rows) -> Records:
        """Read rows of a batch for an input layer, with random augmentation."""
        augmentations = self.augmentations[layer]
        before = range(rows.start - augmentations.partners, rows.start)
        parts = [*((place % rows.total, place % rows.total + 1) for place in before), (rows.start, rows.stop)]
        numbers = np.concatenate([self.sampler.rows(batch, *part) for part in parts])
        epochs = np.concatenate([self.sampler.epochs(batch, *part) for part in parts])
        drawn = self.stores[layer].draw(numbers, self.sampler.seed, lambda: epochs)
        return Records(*augmentations.augment(*drawn, numbers, epochs))

    def read_range(self, start: int, stop: int) -> dict[str, Records]:
        """Return the records ``start`` to ``stop`` in the order of the store, by input layer."""
        numbers = range(start, min(stop, len(self)))
        records = {name: Records(*store.read(numbers)) for name, store in self.stores.items()}
        for name, augmentations in self.augmentations.items():
            data, labels = records[name]
            labels = None if labels is None else augmentations.cut_labels(labels)
            records[name] = Records(augmentations.evaluate(data), labels)
        return records

    def sizes(self, net: NeuralNet) -> tuple[int, int]:
        """Estimate memory: return the bytes of a worker's batch, and of the records that it keeps."""
        batch, shares = 0, []
        for stage in net.stages:
            if stage.layer.is_input and stage.layer.name in self.stores:
                store, region = self.stores[stage.layer.name], stage.layer.region
                batch += batch_bytes(stage, store.record_bytes, store.label_bytes)
                shares.append((store, region.share if region else 1.0))
        return batch, kept_bytes(shares)


class WorkerBatches:
    """Reads a worker's part of each micro-batch, numbered through all steps; for one thread."""

    def __init__(self, reader: BatchReader, rows: Mapping[str, Rows], group: int = 0):
        self._reader, self._group = reader, group % reader.groups
        self._inputs = [(name, reader.stores[name], *part[:2]) for name, part in rows.items()]
        self._run: Run = (0, np.empty(0, np.int64))  # of the last rows
        self._ended = -1  # the last epoch that has been read

    def __call__(self, number: int) -> dict[str, Records]:
        """Return the worker's records of micro-batch ``number``, by input layer."""
        reader, sampler = self._reader, self._reader.sampler
        step, place = divmod(number, reader.micro_batches)
        batch, first = step * reader.groups + self._group, place * reader.parts[-1].total
        records = {}
        for name, store, start, stop in self._inputs:
            part = (batch, first + start, first + stop)
            if name in reader.augmentations:
                records[name] = reader.read_augmented(name, batch, Rows(*part[1:], reader.batchsize))
            else:
                records[name] = Records(*store.draw(self._rows(*part), sampler.seed, partial(sampler.epochs, *part)))
        ended = (sampler.skip + (batch + 1) * sampler.batchsize) // sampler.length - 1
        if ended > self._ended and records and reader.steps and place == reader.micro_batches - 1:
            self._ended = ended
            for source in reader.stores.values():
                source.end_epoch(ended, sampler.seed)
        return records

    def _rows(self, batch: int, start: int, stop: int) -> np.ndarray:
        """Return the record numbers of a part of a batch, from the last drawn rows if they have it."""
        sampler, count = self._reader.sampler, stop - start
        position = sampler.skip + batch * sampler.batchsize + start
        first, run = self._run
        if not first <= position < first + len(run):
            first, run = self._run = sampler.run(position)
        rows = run[position - first : position - first + count]
        return rows if len(rows) == count else sampler.rows(batch, start, stop)


def divide_batch(rows: int, micro_batches: int) -> list[Rows]:
    """Divide a batch into equal micro-batches: return the rows of each. Raises UserError if unequal."""
    if rows % micro_batches:
        raise UserError(
            f"a batch of {rows} records cannot be divided into {micro_batches} equal micro_batches, as the job has"
        )
    return cut_evenly(rows, micro_batches)


def batch_bytes(stage: Stage, record: int, label: int) -> int:
    """Return the bytes of an input layer's batch, or of a worker's share if records are cut."""
    rows = stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]
    shares = [region.share if region else 1 for region in (stage.layer.region, stage.layer.label_region)]
    return rows * int(record * shares[0] + label * shares[1])


def whole_batches(reader: BatchReader) -> BatchReader:
    """Return the reader of one worker for all rows of the same batches."""
    total = reader.parts[-1].total
    return replace(reader, parts=(Rows(0, total, total),))


class ReaderOfSites(Protocol):
    """The type of the hook ``site_reader``, for groups of workers at sites with their own stores."""

    def __call__(self, reader: BatchReader, open_site: Callable[[int], BatchReader]) -> BatchReader:
        """Return a reader of the sites' own stores, based on the checked job's reader."""


def site_job(job: Job, site: int) -> Job:
    """Return the job that trains on one site's stores: with ``site_path`` as ``path``."""
    layers = [
        layer.replace(store_conf=layer.store_conf.replace(path=layer.store_conf.site_path[site], site_path=[]))
        if layer.store_conf is not None and layer.store_conf.site_path
        else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def tests_all_records(job: Job, phase: Phase) -> bool:
    """Whether training evaluates all records of ``phase``, because the job gives no number of batches."""
    steps = {Phase.kVal: job.validate_steps, Phase.kTest: job.test_steps}
    return steps.get(phase) == 0


def readers_of_all_records(reader: BatchReader) -> list[BatchReader]:
    """Return one or two readers that together read each record once, in the order of the store.

    The first one's batches are one row larger, as in ``numpy.array_split``, and at most as large as in ``reader``. With
    fewer records than workers, one batch has each record equally often, which preserves means.
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
    """Return how many batches each of :func:`readers_of_all_records` reads."""
    starts = [*(reader.sampler.skip for reader in readers), len(readers[0])]
    return [
        -(-(stop - start) // reader.batchsize) for reader, start, stop in zip(readers, starts, starts[1:], strict=False)
    ]


def _resized(reader: BatchReader, batchsize: int, start: int) -> BatchReader:
    infos = {name: replace(info, batchsize=batchsize) for name, info in reader.infos.items()}
    sampler = Sampler(len(reader), batchsize, reader.sampler.seed, reader.sampler.chunk, shuffle=False, skip=start)
    return replace(reader, infos=infos, sampler=sampler, parts=_scale(reader.parts, batchsize), steps=0)


def _scale(parts: Sequence[Rows], total: int) -> tuple[Rows, ...]:
    """Divide a batch of ``total`` rows among workers as ``parts`` does, with at least 1 row each."""
    sizes = [part.stop - part.start for part in parts]
    if total > parts[-1].total or max(sizes) - min(sizes) <= 1:
        return tuple(cut_evenly(total, len(parts)))
    # Each worker has one row; the others are shared out in proportion to the other rows of ``parts``.
    room, others = parts[-1].total - len(parts), total - len(parts)
    starts = [number + (part.start - number) * others // room for number, part in enumerate(parts)]
    return tuple(Rows(start, stop, total) for start, stop in zip(starts, [*starts[1:], total], strict=True))
