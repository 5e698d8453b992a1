"""Reads batches: the stores of a phase, the order of their records, and the rows that each worker reads.

Converts a job's epochs to steps, which needs the number of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsinga.augmentation import AugmentationList
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data import (
    DataSource,
    FieldWindows,
    RecordSource,
    TextWindows,
    kept_bytes,
    open_records,
    open_store,
    open_text,
    read_mean,
    resolve,
)
from dsinga.data.filesystem import PathNotFound
from dsinga.job import Job, LayerConf, LayerType, Phase, StoreConf, check
from dsinga.job.checks import check_schedules
from dsinga.job.enums import PHASES
from dsinga.job.resolve import error_note
from dsinga.layers import Layer, RecordInfo, Records, Rows
from dsinga.layers.interface.context import rows_of_batch
from dsinga.net import NeuralNet, Stage, cut_evenly, input_layers
from dsinga.net.layer_classes import layer_class
from dsinga.reading.augmented_records import augmented_info
from dsinga.reading.epochs import Epochs
from dsinga.reading.sampler import Sampler
from dsinga.reading.sequence_lengths import SequenceLengths
from dsinga.reading.windows_conf import definition_of


@dataclass(frozen=True)
class BatchReader:
    """Reads the records of one phase, for any worker of a group.

    All input layers of a phase read the same row numbers, so that records that belong together (an image and its
    text) stay together.

    Attributes:
        stores: the store of each input layer, by the layer's name.
        infos: the facts about each store that its layer needs.
        sampler: the order of the records.
        parts: each worker's rows of a batch; with ``micro_batches``, of the first micro-batch.
        groups: the number of worker groups, each of which reads batches of its own.
        micro_batches: the number of equal parts of a batch that are computed one after another.
        augmentations: those of the input layers that have some, by the layer's name.
        offset: the position in the order of the records where step 0 would begin; see :class:`Epochs`.
    """

    stores: Mapping[str, RecordSource]
    infos: Mapping[str, RecordInfo]
    sampler: Sampler
    parts: tuple[Rows, ...]
    groups: int = 1
    micro_batches: int = 1
    augmentations: Mapping[str, AugmentationList] = field(default_factory=dict)
    offset: int = 0

    @property
    def epochs(self) -> Epochs:
        """The epochs of all worker groups together."""
        return Epochs(len(self), self.batchsize * self.groups, self.offset)

    @property
    def batchsize(self) -> int:
        """Rows of the global batch."""
        return self.parts[-1].total * self.micro_batches

    def __len__(self) -> int:
        """Records in the stores."""
        return min(len(store) for store in self.stores.values())

    def micro_batch(self, number: int) -> Rows | None:
        """Return the rows of a batch's micro-batch of this number, None where a batch is computed at once."""
        size = self.parts[-1].total
        return None if self.micro_batches == 1 else Rows(number * size, (number + 1) * size, self.batchsize)

    def rows(self, worker: int, number: int = 0) -> Rows:
        """Return the rows of a batch that a worker computes in its micro-batch of this number."""
        micro_batch = self.micro_batch(number)
        return self.parts[worker] if micro_batch is None else rows_of_batch(self.parts[worker], micro_batch)

    def read(self, number: int, rows: Mapping[str, Rows], group: int = 0) -> dict[str, Records]:
        """Return the given rows of micro-batch ``number`` of a group, by input layer.

        Micro-batches are numbered through all steps. They are the batches where these are computed at once.
        """
        if not rows:  # of a worker without input layers, or whose records the algorithm makes
            return {}
        step, place = divmod(number, self.micro_batches)
        batch, first = step * self.groups + group, place * self.parts[-1].total
        parts = {name: Rows(first + part.start, first + part.stop, self.batchsize) for name, part in rows.items()}
        numbers = {part: self.sampler.rows(batch, *part[:2]) for part in set(parts.values())}
        return {
            name: self._read_augmented(name, batch, part)
            if name in self.augmentations
            else Records(*self.stores[name].read(numbers[part]))
            for name, part in parts.items()
        }

    def in_regions(self, layers: Iterable[Layer]) -> BatchReader:
        """Return a reader that reads, of records and labels, only the points that parts of input layers need.

        Augmentations take whole records, and so do sources that cannot read less: ``Layer.take_region`` cuts these.
        """
        stores = {
            layer.name: self.stores[layer.name].in_region(*layer.regions_read())
            for layer in layers
            if layer.name not in self.augmentations
        }
        return replace(self, stores={**self.stores, **stores})

    def _read_augmented(self, layer: str, batch: int, rows: Rows) -> Records:
        """Return rows of a batch after the augmentations of the input layer."""
        augmentations = self.augmentations[layer]
        before = range(rows.start - augmentations.partners, rows.start)
        parts = [*((place % rows.total, place % rows.total + 1) for place in before), (rows.start, rows.stop)]
        numbers = np.concatenate([self.sampler.rows(batch, *part) for part in parts])
        epochs = np.concatenate([self.sampler.epochs(batch, *part) for part in parts])
        return Records(*augmentations.augment(*self.stores[layer].read(numbers), numbers, epochs))

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
        """Return the bytes that a worker with this net reads for a batch, and of the decoded records that it keeps."""
        batch, shares = 0, []
        for stage in net.stages:
            if stage.layer.is_input and stage.layer.name in self.stores:
                store, region = self.stores[stage.layer.name], stage.layer.region
                batch += batch_bytes(stage, store.record_bytes, store.label_bytes)
                shares.append((store, region.share if region else 1.0))
        return batch, kept_bytes(shares)


def batch_bytes(stage: Stage, record: int, label: int) -> int:
    """Return the bytes that an input layer reads for a batch, of records and labels of these bytes."""
    rows = stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]
    return rows * _bytes_read(stage.layer, record, label)


def _bytes_read(layer: Layer, record: int, label: int) -> int:
    """Return the bytes of a record and of its label that an input layer needs: of one cut by space its points."""
    shares = [region.share if region else 1 for region in (layer.region, layer.label_region)]
    return int(record * shares[0] + label * shares[1])


def open_batch_reader(job: Job, phase: Phase, workers: int, roots: Sequence[str], groups: int = 1) -> BatchReader:
    """Open the stores of a phase, for ``groups`` worker groups of ``workers`` workers each.

    Batches of kTrain are read in the job's ``micro_batches``. Raises UserError (from the store, or naming the layer)
    where a store is missing or unlike the others.
    """
    layers = [_with_store(layer) for layer in input_layers(job.neuralnet, phase)]
    if not layers:
        raise job.neuralnet.error(f"the net has no input layer in phase {phase.name}")
    stores: dict[str, RecordSource] = {}
    infos: dict[str, RecordInfo] = {}
    augmentations: dict[str, AugmentationList] = {}
    for layer in layers:
        store: RecordSource
        text = layer.type is LayerType.kCharRNN
        try:
            store, infos[layer.name] = _open_text(layer, roots, job) if text else _open(layer, roots)
        except PathNotFound as error:
            raise UserError(f"{error}{_how_to_give_arrays(job, phase)}") from None
        if layer.store_conf is not None:
            infos[layer.name], augmentations_of_layer = augmented_info(
                layer, infos[layer.name], store.dtype, job.seed, phase
            )
            if augmentations_of_layer is not None:
                augmentations[layer.name] = augmentations_of_layer
        if job.skip_bad_batches:
            store = store.allowing_nonfinite()
        stores[layer.name] = store
    first = layers[0]
    for layer in layers[1:]:
        _check_equal(first, layer, "batch size", infos[first.name].batchsize, infos[layer.name].batchsize)
        _check_equal(first, layer, "number of records", len(stores[first.name]), len(stores[layer.name]))
    store = stores[first.name]
    offset = job.record_offset if phase is Phase.kTrain else 0
    sampler = Sampler(
        len(store),
        infos[first.name].batchsize,
        seed=job.seed,
        chunk=store.block,
        shuffle=bool(phase & Phase.kTrain) and not any(isinstance(other, TextWindows) for other in stores.values()),
        skip=offset + (first.store_conf.random_skip if first.store_conf else 0),
    )
    if sampler.shuffle:
        sampler = _by_length(sampler, layers, stores, infos)
    count = job.micro_batches if phase is Phase.kTrain else 1
    size = micro_batch_size(first, infos[first.name].batchsize, count)
    infos = {name: replace(info, batchsize=size, micro_batches=count) for name, info in infos.items()}
    parts = _cut(first, size, workers, count, job.neuralnet.allows_few_rows)
    return BatchReader(stores, infos, sampler, parts, groups, count, augmentations, offset)


def _by_length(
    sampler: Sampler,
    layers: Sequence[LayerConf],
    stores: Mapping[str, RecordSource],
    infos: Mapping[str, RecordInfo],
) -> Sampler:
    """Return the sampler with the lengths of the first input layer that asks for batches of similar lengths."""
    for layer in layers:
        if layer.store_conf is not None and layer.store_conf.group_by_length:
            steps = infos[layer.name].shape[0] if len(infos[layer.name].shape) == 1 else None
            try:
                lengths = SequenceLengths(stores[layer.name], steps)
            except UserError as error:
                raise layer.store_conf.error(
                    f"layer {layer.name!r}: group_by_length {error}; leave it out", "group_by_length"
                ) from None
            return replace(sampler, lengths=lengths, grouped=layer.store_conf.group_by_length)
    return sampler


def micro_batch_size(layer: LayerConf, batchsize: int, count: int) -> int:
    """Return the rows of each of ``count`` micro-batches. Raises JobError where they would not be equal."""
    sizes = layer.store_conf.batchsize if layer.store_conf else [batchsize]
    uneven = [size for size in sizes if size % count]
    if uneven:
        raise (layer.store_conf or layer).error(
            f"layer {layer.name!r}: a batchsize of {uneven[0]} cannot be divided into {count} equal micro_batches; "
            f"give a multiple of {count}, or another number of micro_batches",
            "batchsize",
        )
    return batchsize // count


def _how_to_give_arrays(job: Job, phase: Phase) -> str:
    """Return a text that says how to give the arrays of a phase without a store, "" where no phase has arrays."""
    bound = [layer for layer in job.neuralnet.layer if layer.store_conf and layer.store_conf.records is not None]
    names = {name: value for name, value in PHASES.items() if any(layer.in_phase(value) for layer in bound)}
    if not names:
        return ""
    names |= {name: value for name, value in PHASES.items() if value is phase}
    data = ", ".join(f'"{name}": ...' for name in names)
    return f"\nor give arrays for phase {phase.name}, too: data={{{data}}}"


def _with_store(layer: LayerConf) -> LayerConf:
    """Return the layer with the store_conf that its class derives from its configuration, or that has its records."""
    if layer.store_conf is not None and layer.store_conf.records is not None:
        return layer
    conf = layer_class(layer).reads(layer)
    return layer if conf is layer.store_conf else layer.replace(store_conf=conf)


def _open(layer: LayerConf, roots: Sequence[str]) -> tuple[RecordSource, RecordInfo]:
    conf = layer.store_conf
    if conf is None:
        raise layer.error(f"layer {layer.name!r} needs a store_conf with the path of its records")
    if not conf.batchsize:
        raise conf.error(f"layer {layer.name!r}: store_conf needs a batchsize")
    store = _open_records(layer, conf, roots)
    mean = read_mean(conf.mean_file, roots) if conf.mean_file else None
    std = read_mean(conf.std_file, roots) if conf.std_file else None
    return store, _info(store, sum(conf.batchsize), mean, std)


def _open_records(layer: LayerConf, conf: StoreConf, roots: Sequence[str]) -> RecordSource:
    """Return the array that is bound to the layer, or open the store of its path, or the source of the user's own."""
    if conf.records is not None:
        return conf.records
    if not conf.has_records:
        raise conf.error(f"layer {layer.name!r}: store_conf needs a path, or in Python data=, the arrays of the phase")
    try:
        cls = lookup(conf.kind, conf.type_name)
    except UserError as error:
        raise conf.error(f"layer {layer.name!r}: {error}", "backend") from None
    if cls is not StoreConf:
        return _open_source(layer, conf, cls, roots)
    assert conf.path is not None
    if conf.windows is not None:
        return open_windows(layer, conf, resolve(conf.path, roots))
    return open_store(
        conf.path,
        backend=conf.backend,
        roots=roots,
        separator=conf.separator,
        has_label=conf.has_label,
        shape=conf.shape,
        encoded=conf.encoded,
        data=conf.data,
        label=conf.label,
    )


def open_windows(layer: LayerConf, conf: StoreConf, dataset: Any) -> FieldWindows:
    """Return the windows of a Dataset, or of the one at a path, by the settings of an input layer. Raises JobError."""
    assert conf.windows is not None
    try:
        return FieldWindows(dataset, definition_of(conf.windows), has_targets=conf.has_label)
    except UserError as error:
        raise conf.windows.error(f"layer {layer.name!r}: {error}") from error


def _open_source(layer: LayerConf, conf: StoreConf, cls: Any, roots: Sequence[str]) -> RecordSource:
    """Open the source of the user's own that is registered for the backend."""
    if not (isinstance(cls, type) and issubclass(cls, DataSource)):
        text = f"layer {layer.name!r}: {conf.backend!r} must be registered with a subclass of dsinga.data.DataSource"
        raise conf.error(f"{text}, not {cls!r}", "backend")
    source = cls(conf.path, conf.settings_of(cls.Conf) if cls.Conf else None, roots)
    with error_note(f"in the source {conf.backend} of layer {layer.name!r}"):
        try:
            return open_records(source, roots=roots)
        except UserError as error:
            raise conf.error(f"layer {layer.name!r}: source {conf.backend}: {error}", "backend") from error


def _open_text(layer: LayerConf, roots: Sequence[str], job: Job) -> tuple[TextWindows, RecordInfo]:
    """Open the text of a kCharRNN layer. With several worker groups, batches of a group do not continue each other."""
    groups = job.cluster.nworker_groups if job.cluster else 1
    conf = layer.char_rnn_conf
    if conf is None or not conf.path:
        raise (conf or layer).error(f"layer {layer.name!r}: char_rnn_conf needs the path of a text")
    text = TextWindows(open_text(conf.path, conf.vocab_path, roots), conf.batchsize, conf.unroll_len, conf.labels)
    info = RecordInfo(
        text.shape,
        conf.batchsize,
        has_labels=conf.labels,
        label_shape=text.label_shape,
        codes=len(text.vocabulary),
        continues=groups == 1,
    )
    return text, info


def _info(store: RecordSource, batchsize: int, mean: Any = None, std: Any = None) -> RecordInfo:
    facts = (store.has_labels, store.label_range(), mean, std, store.label_shape)
    return RecordInfo(
        store.shape,
        batchsize,
        *facts,
        codes=len(store.vocabulary),
        label_dtype=store.label_dtype or np.int64,
        label_names=store.classes,
    )


def _check_equal(first: LayerConf, other: LayerConf, what: str, first_number: int, number: int) -> None:
    if number != first_number:
        raise other.error(
            f"layer {other.name!r} has a {what} of {number}, layer {first.name!r} of {first_number}; "
            "input layers of one phase read record by record together"
        )


def _cut(layer: LayerConf, batchsize: int, workers: int, micro_batches: int, few_rows: bool) -> tuple[Rows, ...]:
    """Return the rows of each worker of a batch that is computed at once, or of the first of several micro-batches.

    They are cut evenly, or by SINGA's repeated ``batchsize``, one size for each worker. With ``few_rows``
    some workers may have none: they compute points, or features, of the others' rows.
    """
    sizes = [size // micro_batches for size in layer.store_conf.batchsize] if layer.store_conf else [batchsize]
    where = layer.store_conf or layer
    if len(sizes) == 1:
        if batchsize < workers and not few_rows:
            fewer = "" if micro_batches == 1 else ", fewer micro_batches"
            raise where.error(
                f"layer {layer.name!r}: a {'batch' if micro_batches == 1 else 'micro-batch'} of {batchsize} cannot be "
                f"cut over {workers} workers; use at most {batchsize} workers{fewer} or a larger batchsize",
                "batchsize",
            )
        return tuple(cut_evenly(batchsize, workers))
    if len(sizes) != workers:
        raise where.error(
            f"layer {layer.name!r} gives {len(sizes)} batch sizes for {workers} workers; give one, or one a worker",
            "batchsize",
        )
    starts = [sum(sizes[:part]) for part in range(workers)]
    return tuple(Rows(start, start + size, batchsize) for start, size in zip(starts, sizes, strict=True))


def resolve_epochs(job: Job, roots: Sequence[str] = ()) -> Job:
    """Convert a job's ``epochs`` to ``train_steps``; return the job itself if it has no ``epochs``.

    An epoch of N records in batches of B rows, those of all worker groups together, is N/B steps; the last of E epochs
    ends with step ceil(E·N/B), or at another one in a run that goes on with batches of another size. Raises UserError
    where the job also has other ``train_steps``, and for what is wrong with the job or its training records.
    """
    if not job.epochs:
        return job
    steps = epochs_of(job, roots).end(job.epochs)
    if job.train_steps not in (0, steps):
        raise job.error(
            f"the job has train_steps: {job.train_steps} and epochs: {job.epochs}, which are {steps} steps of these "
            "records; give one of the two",
            "epochs",
        )
    job = job.replace(train_steps=steps)
    check_schedules(job)
    return job


def epochs_of(job: Job, roots: Sequence[str]) -> Epochs:
    """Return the epochs of a job, whose training records are opened. Raises UserError for what is wrong with these."""
    check(job)
    sizes = [len(layer.store_conf.batchsize) for layer in job.neuralnet.layer if layer.store_conf]
    groups = job.cluster.nworker_groups if job.cluster else 1
    # How the rows of a batch are cut does not matter here, but uneven sizes are one for each worker.
    return open_batch_reader(job, Phase.kTrain, max(sizes, default=1), roots, groups).epochs


def rows_per_step(job: Job) -> int:
    """Return the training records that all worker groups of a job together read in a step, 0 where it does not say."""
    for layer in map(_with_store, input_layers(job.neuralnet, Phase.kTrain)):
        conf = layer.char_rnn_conf if layer.type is LayerType.kCharRNN else layer.store_conf
        sizes = [] if conf is None else [conf.batchsize] if isinstance(conf.batchsize, int) else conf.batchsize
        return sum(sizes) * (job.cluster.nworker_groups if job.cluster else 1)
    return 0
