"""Builds nets whole or partitioned; evaluates and predicts the records of a phase with trained params."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsinga.api.engines import awaitable, find_runner
from dsinga.api.jobs_with_data import Result, job_with_data, roots, warn_of_overlaps, with_workers
from dsinga.api.workspaces import trained_params
from dsinga.base.argument_types import typed
from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import UserError
from dsinga.job import AlgType, Job, Phase, Precision
from dsinga.job.enums import PRECISIONS, find_phase
from dsinga.layers import Records
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.net import NeuralNet, PartitionedNet
from dsinga.net.worker_memory import Memory, worker_memory
from dsinga.ops import cpu_ops
from dsinga.passes import inference
from dsinga.passes.inference import write_outputs
from dsinga.passes.predictor import Forward
from dsinga.passes.predictor import evaluate as evaluate_batches
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.bind_records import has_no_rows, row_of_zeros
from dsinga.reading.checked_job import CheckedJob, build_partitioned_net, check_job
from dsinga.reading.sampler import padding_share
from dsinga.training import add_metrics, create_updater

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

PADDING_BATCHES = 200  # that are read for the share of padding


class OpenPhase(NamedTuple):
    """A phase of a job with the net, the records and the params that are computed.

    Attributes:
        job: the job, with the data of the call.
        phase: the phase.
        params: the params, by name.
        roots: the folders where relative paths are looked up.
        layer: the layer that is predicted, None for an evaluation.
        net: the net of the phase.
        reader: reads its batches.
        forward: its forward passes.
        compute: returns dask arrays as numpy arrays, computed where the forward passes are.
    """

    job: Job
    phase: Phase
    params: ParamArrays
    roots: Sequence[str]
    layer: str | None
    net: NeuralNet
    reader: BatchReader
    forward: Forward
    compute: Callable[[Sequence[Any]], Sequence[Any]]

    def evaluate(self) -> dict[str, float]:
        """Return the mean loss and metrics over all records; output layers write their files."""
        warn_of_overlaps(self.job, self.phase)
        sums = add_metrics(evaluate_batches([(self.net, self.reader, 0)], self.forward))
        write_outputs(self.net, self.reader, self.forward)
        return metric_values(sums)

    def batches(self) -> Iterator[Records]:
        """Yield the output of the layer and the labels for each batch, in the order of the records.

        Raises UserError for an unknown layer.
        """
        assert self.layer is not None
        self.net.position(self.layer)
        for features, _ in self.forward(self.net, self.reader, (self.layer,), 0):
            yield features[self.layer]
            del features  # else they would stay while the next ones are computed

    def predict(self) -> np.ndarray:
        """Return the output of the layer for all records: (records, ...)."""
        return np.concatenate([batch.data for batch in self.batches()])


@contextlib.contextmanager
def open_phase(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str | None,
    phase: str,
    client: Any,
    data: Any,
    data_root: str | None,
    resources: Mapping[str, float] | None,
    hosts: Sequence[str],
) -> Iterator[OpenPhase]:
    """Yield a phase of a job. Arguments are those of :func:`dsinga.predict`; without a ``layer`` the net has all.

    Errors that leave the block keep no nets and params in their tracebacks. Raises UserError for bad input.
    """
    job_phase = find_phase(phase)
    job = job_with_data(job, data, job_phase, data_root, params)
    folders = roots(job, data_root)
    trained = trained_params(job, params, folders)
    runner = find_runner(client, waits=True).for_call(bool(resources or hosts))
    with runner.forward(job, trained, resources, hosts) as passes, cleared_frames("dsinga"):
        net, reader = inference.open_phase(job, trained, job_phase, folders, layer)
        yield OpenPhase(job, job_phase, trained, folders, layer, net, reader, *passes)


@typed()
@awaitable
def evaluate(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None = None,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> dict[str, float]:
    """Return the mean loss and metrics of ``params`` over all records of ``phase``: "train", "val" or "test".

    ``params`` are arrays by name, a result, or the path of a checkpoint; by default those of the newest checkpoint in
    the job's workspace or, where there is none, of its ``checkpoint_path``. ``data`` are arrays that the phase's input
    layer reads in place of its store, such as a pair (x, y), ``resources`` and ``hosts`` choose the Dask workers; see
    :func:`dsinga.train`. Raises UserError for bad input.
    """
    with open_phase(job, params, None, phase, client, data, data_root, resources, hosts) as opened:
        return opened.evaluate()


@typed()
@awaitable
def predict(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> np.ndarray:
    """Return the output of ``layer`` for every record of ``phase``, in the order of the store: (records, ...).

    ``params`` are arrays by name, a result, or the path of a checkpoint; None for those that :func:`evaluate` takes.
    ``data`` are arrays that the phase's input layer reads in place of its store: x, or a pair (x, y), ``resources`` and
    ``hosts`` choose the Dask workers; see :func:`dsinga.train`. Where records have no labels, layers that need some are
    left out of the net. Raises UserError for bad input. Use :func:`predict_batches` where the result does not fit into
    memory.
    """
    is_empty = has_no_rows(data)
    rows = row_of_zeros(data) if is_empty else data
    with open_phase(job, params, layer, phase, client, rows, data_root, resources, hosts) as opened:
        return opened.predict()[: 0 if is_empty else None]


@typed()
def predict_batches(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> Iterator[np.ndarray]:
    """Yield the output of ``layer`` batch by batch: (rows, ...). Arguments are those of :func:`predict`."""
    with open_phase(job, params, layer, phase, client, data, data_root, resources, hosts) as opened:
        for feature, _ in opened.batches():
            yield feature


@typed()
def predict_with_labels(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data: Any = None,
    data_root: str | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield the output of ``layer`` (rows, ...) and the labels (rows, ...), None without labels, batch by batch.

    Arguments are those of :func:`predict`. :func:`dsinga.data.write_store` takes such pairs.
    """
    with open_phase(job, params, layer, phase, client, data, data_root, resources, hosts) as opened:
        yield from opened.batches()


@typed()
def build_net(
    job: Job | str | os.PathLike[str], phase: str = "train", *, data: Any = None, data_root: str | None = None
) -> NeuralNet:
    """Return the net of a phase, without training: its layers, shapes and params.

    ``data`` are arrays that the phase's input layer reads in place of its store; see :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = job_with_data(job, data, net_phase, data_root)
    return check_job(job, roots(job, data_root), [net_phase]).net(net_phase)


@typed()
def partition_net(
    job: Job | str | os.PathLike[str],
    workers: int,
    phase: str = "train",
    *,
    data: Any = None,
    data_root: str | None = None,
) -> PartitionedNet:
    """Return the net of a phase, cut for ``workers`` workers of a group, without training.

    In a notebook it is drawn with a colour for each worker. ``partition: auto`` is ignored, because its choice depends
    on the cluster; see :func:`dsinga.plan`. ``data`` are arrays in place of stores, as in :func:`dsinga.train`. Raises
    UserError for bad input.
    """
    net_phase = find_phase(phase)
    job = with_workers(job_with_data(job, data, net_phase, data_root), workers)
    return build_partitioned_net(job, net_phase, workers, roots(job, data_root))


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


def expected_memory(job: Job, net: NeuralNet | PartitionedNet, data_root: str | None = None) -> list[Memory]:
    """Return the memory that each worker, in a process of its own, needs to train ``net``, the job's net of kTrain.

    The list is empty if the job is not trained by back-propagation, or if its stores or its updater are missing.
    """
    if job.train_one_batch.alg is AlgType.kCD:
        return []
    locals_ = (net,) if isinstance(net, NeuralNet) else net.locals
    try:
        return training_memory(job, locals_, CheckedJob(job, roots(job, data_root)).reader(Phase.kTrain, len(locals_)))
    except UserError:
        return []


def describe_padding(job: Job, data_root: str | None = None) -> str:
    """Return the share of padding in shuffled batches and in those by length, "" where no lengths are known.

    Of a batch the steps up to the end of its longest sequence count. The first batches are read, at most an epoch.
    """
    try:
        sampler = CheckedJob(job, roots(job, data_root)).reader(Phase.kTrain).sampler
    except UserError:  # stores are missing
        return ""
    if (lengths := sampler.lengths) is None:
        return ""
    batches = min(PADDING_BATCHES, -(-sampler.length // sampler.batchsize))
    orders = (order.rows(0, 0, batches * sampler.batchsize) for order in (replace(sampler, lengths=None), sampler))
    shuffled, by_length = (padding_share([*map(lengths.of, np.split(rows, batches))]) for rows in orders)
    return (
        f"padding, up to the longest sequence of a batch: {shuffled:.1%} of the steps in shuffled batches, "
        f"{by_length:.1%} by length (group_by_length: {sampler.grouped})"
    )
