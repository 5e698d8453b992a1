"""Checks a job, opens its stores, and builds nets for its workers, each only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from dsinga.base.advice import is_command
from dsinga.base.errors import PathNotFound, UserError
from dsinga.base.registry import lookup
from dsinga.data import RecordNames, RecordSource, check_names
from dsinga.job import Job, LayerConf, LayerType, NetConf, Phase, check
from dsinga.job.checks import check_cluster, check_schedules
from dsinga.job.enums import PHASES
from dsinga.job.epochs import Epochs
from dsinga.layers import RecordInfo, Rows
from dsinga.layers.interface.context import cut_evenly
from dsinga.net import NeuralNet, create_net, input_layers
from dsinga.reading.batch_reader import BatchReader, ReaderOfSites, site_job
from dsinga.reading.open_layer import augmented_info, open_layer, with_store
from dsinga.reading.sampler import Sampler, SequenceLengths


@dataclass(frozen=True, eq=False)
class CheckedJob:
    """A job that has been checked; it opens its stores and builds its nets on first use."""

    job: Job
    roots: Sequence[str] = ()
    # By the id of an input layer's configuration, which is kept so that no other one gets the id.
    _opened: dict[int, tuple[LayerConf, RecordSource, RecordInfo]] = field(default_factory=dict, repr=False)

    def with_job(self, job: Job) -> CheckedJob:
        """Return a changed job, which has the same input layers, with the stores that are already open."""
        return replace(self, job=job)

    def net(self, phase: Phase) -> NeuralNet:
        """Build the whole net of a phase. Raises UserError if the net or its stores are wrong."""
        return create_net(self.job.neuralnet, phase, self.reader(phase).infos)

    @property
    def epochs(self) -> Epochs:
        """Converts between steps and epochs, over all worker groups. Raises UserError for bad training records."""
        sizes = [len(layer.store_conf.batchsize) for layer in self.job.neuralnet.layer if layer.store_conf]
        # How the rows of a batch are cut does not matter here, but uneven sizes are one for each worker.
        return self.reader(Phase.kTrain, max(sizes, default=1), _worker_groups(self.job)).epochs

    def reader(self, phase: Phase, workers: int = 1, groups: int = 1) -> BatchReader:
        """Open the stores of a phase: return the reader of its batches."""
        job, layers = self.job, input_layers(self.job.neuralnet, phase)
        if not layers:
            raise job.neuralnet.error(f"the net has no input layer in phase {phase.name}")
        stores: dict[str, RecordSource] = {}
        infos: dict[str, RecordInfo] = {}
        augmentations: dict[str, Any] = {}
        for number, given in enumerate(layers):
            layer = layers[number] = with_store(given)
            try:
                store, infos[layer.name] = self._open(given, layer)
            except PathNotFound as error:
                raise UserError(_with_arrays(str(error), job, phase)) from None
            infos[layer.name], changes = augmented_info(layer, infos[layer.name], store.dtype, job.seed, phase)
            if changes is not None:
                augmentations[layer.name] = changes
            if job.skip_bad_batches:
                store = store.allowing_nonfinite()
            stores[layer.name] = store
        first = layers[0]
        for layer in layers[1:]:
            _check_equal(first, layer, "batch size", infos[first.name].batchsize, infos[layer.name].batchsize)
            _check_equal(first, layer, "number of records", len(stores[first.name]), len(stores[layer.name]))
        offset = job.record_offset if phase is Phase.kTrain else 0
        sampler = _sampler(job, phase, layers, stores, infos, offset)
        count = job.passes if phase is Phase.kTrain else 1
        size = micro_batch_size(first, infos[first.name].batchsize, count)
        infos = {name: replace(info, batchsize=size, micro_batches=count) for name, info in infos.items()}
        parts = _cut(first, size, workers, count, job.neuralnet.allows_few_rows, "blocks" if job.blocks else "workers")
        steps = job.train_steps if phase is Phase.kTrain and not job.experience else 0
        reader = BatchReader(stores, infos, sampler, parts, groups, count, augmentations, offset, steps)
        if phase is Phase.kTrain and any(layer.store_conf and layer.store_conf.site_path for layer in layers):
            reader_of_sites: ReaderOfSites = lookup("hook", "site_reader")
            return reader_of_sites(reader, partial(_open_site, job, self.roots, workers))
        return reader

    def _open(self, given: LayerConf, layer: LayerConf) -> tuple[RecordSource, RecordInfo]:
        if id(given) not in self._opened:
            self._opened[id(given)] = (given, *open_layer(layer, self.roots))
        _, store, info = self._opened[id(given)]
        if info.continues:  # but batches of one of several worker groups do not continue each other
            info = replace(info, continues=_worker_groups(self.job) == 1)
        return store, info


JobChange = Callable[[CheckedJob], Job]
"""A function that returns a job with changes, such as an add-on's; its input layers stay the same objects.

A model's ``job_changes`` hold for all its nets, and see records only if the job itself has them. An extension's changes
(:meth:`dsinga.extensions.Extension.change_job`) hold for a run and may read its records.
"""


def changed(checked: CheckedJob, changes: Iterable[JobChange]) -> CheckedJob:
    """Apply changes to a job, such as an extension's, in order: return the changed job."""
    for change in changes:
        checked = checked.with_job(change(checked))
    return checked


def check_job(
    job: Job | CheckedJob, roots: Sequence[str] = (), phases: Sequence[Phase] | None = None, needs_paths: bool = True
) -> CheckedJob:
    """Check a job without opening its stores. Raises JobError for the first mistake.

    Arguments: :func:`dsinga.job.check`. A CheckedJob is returned unchanged.
    """
    if isinstance(job, CheckedJob):
        return job
    check(job, phases, needs_paths)
    return CheckedJob(job, roots)


def _worker_groups(job: Job) -> int:
    return job.cluster.nworker_groups if job.cluster else 1


def _sampler(
    job: Job,
    phase: Phase,
    layers: Sequence[LayerConf],
    stores: Mapping[str, RecordSource],
    infos: Mapping[str, RecordInfo],
    offset: int,
) -> Sampler:
    first = layers[0]
    store = stores[first.name]
    for conf in (layer.store_conf for layer in layers):
        if conf is not None and conf.group_by_length and not conf.shuffle:
            raise conf.error(
                "group_by_length sorts shuffled records; leave it out, or shuffle: false", "group_by_length"
            )
    sampler = Sampler(
        len(store),
        infos[first.name].batchsize,
        seed=job.seed,
        chunk=store.blocks,
        shuffle=bool(phase & Phase.kTrain)
        and not any(other.keeps_order for other in stores.values())
        and not any(layer.store_conf is not None and not layer.store_conf.shuffle for layer in layers),
        skip=offset + (first.store_conf.random_skip if first.store_conf else 0),
    )
    return _by_length(sampler, layers, stores, infos) if sampler.shuffle else sampler


def _by_length(
    sampler: Sampler, layers: Sequence[LayerConf], stores: Mapping[str, RecordSource], infos: Mapping[str, RecordInfo]
) -> Sampler:
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
    """Return how many rows each micro-batch has. Raises JobError if they cannot be equal."""
    sizes = layer.store_conf.batchsize if layer.store_conf else [batchsize]
    uneven = [size for size in sizes if size % count]
    if uneven:
        raise (layer.store_conf or layer).error(
            f"layer {layer.name!r}: a batchsize of {uneven[0]} cannot be divided into {count} equal micro_batches; "
            f"give a multiple of {count}, or another number of micro_batches",
            "batchsize",
        )
    return batchsize // count


def _with_arrays(fault: str, job: Job, phase: Phase) -> str:
    """Add to an error on a missing store how to give arrays instead, in Python."""
    bound = [layer for layer in job.neuralnet.layer if layer.store_conf and layer.store_conf.records is not None]
    names = {name: value for name, value in PHASES.items() if any(layer.in_phase(value) for layer in bound)}
    if not names:
        return fault if is_command() else f"{fault}\nor give arrays: data=(x, y)"
    names |= {name: value for name, value in PHASES.items() if value is phase}
    data = ", ".join(f'"{name}": ...' for name in names)
    return f"phase {phase.name} has no records; give arrays for it, too: data={{{data}}}\nor else: {fault}"


def _check_equal(first: LayerConf, other: LayerConf, what: str, first_number: int, number: int) -> None:
    if number != first_number:
        raise other.error(
            f"layer {other.name!r} has a {what} of {number}, layer {first.name!r} of {first_number}; "
            "input layers of one phase read record by record together"
        )


def _cut(
    layer: LayerConf, batchsize: int, workers: int, micro_batches: int, few_rows: bool, noun: str
) -> tuple[Rows, ...]:
    """Divide a batch among workers: return the rows of each.

    They are cut evenly, or by SINGA's repeated ``batchsize``, one per worker. With ``few_rows`` a worker may have none.
    """
    sizes = [size // micro_batches for size in layer.store_conf.batchsize] if layer.store_conf else [batchsize]
    where = layer.store_conf or layer
    if len(sizes) == 1:
        if batchsize < workers and not few_rows:
            fewer = "" if micro_batches == 1 else ", fewer micro_batches"
            raise where.error(
                f"layer {layer.name!r}: a {'batch' if micro_batches == 1 else 'micro-batch'} of {batchsize} cannot be "
                f"cut over {workers} {noun}; use at most {batchsize} {noun}{fewer} or a larger batchsize",
                "batchsize",
            )
        return tuple(cut_evenly(batchsize, workers))
    if len(sizes) != workers:
        raise where.error(
            f"layer {layer.name!r} gives {len(sizes)} batch sizes for {workers} {noun}; give one, or as many as {noun}",
            "batchsize",
        )
    starts = [sum(sizes[:part]) for part in range(workers)]
    return tuple(Rows(start, start + size, batchsize) for start, size in zip(starts, sizes, strict=True))


def resolve_epochs(checked: CheckedJob) -> CheckedJob:
    """Convert a job's ``epochs`` to ``train_steps``, by the number of its records.

    The last of E epochs of N records, in batches of B rows over all worker groups, ends with step ceil(E·N/B). Raises
    UserError for different ``train_steps``.
    """
    job = checked.job
    if not job.epochs:
        return checked
    steps = checked.epochs.end(job.epochs)
    if job.train_steps not in (0, steps):
        raise job.error(
            f"the job has train_steps: {job.train_steps} and epochs: {job.epochs}, which are {steps} steps of these "
            "records; give one of the two",
            "epochs",
        )
    job = job.replace(train_steps=steps)
    check_schedules(job)
    check_cluster(job)
    return checked.with_job(job)


def _open_site(job: Job, roots: Sequence[str], workers: int, site: int) -> BatchReader:
    checked = CheckedJob(site_job(job, site), roots)
    reader = checked.reader(Phase.kTrain, workers)
    create_net(checked.job.neuralnet, Phase.kTrain, reader.infos)  # refuses labels that the net has no outputs for
    return reader


def rows_per_step(job: Job) -> int:
    """Return how many records a training step reads over all worker groups; 0 if unknown."""
    for layer in map(with_store, input_layers(job.neuralnet, Phase.kTrain)):
        conf = layer.char_rnn_conf if layer.type is LayerType.kCharRNN else layer.store_conf
        sizes = [] if conf is None else [conf.batchsize] if isinstance(conf.batchsize, int) else conf.batchsize
        return sum(sizes) * _worker_groups(job)
    return 0


class FitToMemory(Protocol):
    """The type of the planner's hook ``fit_to_memory``, which saves memory on a single worker."""

    def __call__(self, checked: CheckedJob, limit: int) -> CheckedJob:
        """Return the job with micro-batches and recomputation that fit into ``limit`` bytes."""


@contextmanager
def planning(job: Job) -> Iterator[None]:
    """Turn an error of planning, such as a missing planner, into a JobError about ``partition: auto``."""
    try:
        yield
    except UserError as error:
        raise job.neuralnet.error(f"partition: auto: {error}", "partition") from error


def check_same_params(nets: Mapping[Phase, NeuralNet]) -> None:
    """Raise UserError if a phase's net has a param that the training net lacks, or another shape."""
    train = nets[Phase.kTrain].params
    for phase, net in nets.items():
        for name, param in net.params.items():
            if name not in train or train[name].shape != param.shape:
                raise UserError(
                    f"param {name!r} of the {phase.name} net has no counterpart of shape {param.shape} in the "
                    "training net; nets of all phases share their params by name"
                )


ENCODED = (("encoded by a table",),)  # the order of records that only the definition of their table makes


def names_of_training(net: NetConf) -> dict[str, RecordNames]:
    """Return the names of classes and columns of the training records bound to a job."""
    stores = {layer.name: layer.store_conf for layer in input_layers(net, Phase.kTrain)}
    names = {name: RecordNames.of(conf.records) for name, conf in stores.items() if conf is not None}
    for name, conf in stores.items():
        if conf is not None and any(by.is_encoded for by in conf.definition.values()):
            names[name] = names[name]._replace(order=ENCODED)
    return {name: of_layer for name, of_layer in names.items() if any(of_layer)}


def check_same_names(readers: Mapping[Phase, BatchReader]) -> None:
    """Raise UserError if labels, columns or words mean something else in validation or test than in training."""
    for phase, reader in readers.items():
        for name, store in reader.stores.items():
            train = readers[Phase.kTrain].stores.get(name)
            if train is not None and store.vocabulary != train.vocabulary:
                raise UserError(
                    f"{store.location}, which phase {phase.name} reads, has another vocabulary than {train.location}; "
                    "import all parts of a text at once (--held-out), or the later ones with --vocabulary"
                )
            if train is not None:
                check_names(store, RecordNames.of(train), phase.name or "")
