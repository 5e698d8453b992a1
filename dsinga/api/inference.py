"""Using trained params: evaluate, by groups of fields, too, and predict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsinga import cluster
from dsinga.api.clients import awaitable, find_cluster
from dsinga.api.execution import select_workers
from dsinga.api.jobs_with_data import job_with_data, patience_of, roots, say_overlaps
from dsinga.api.result import Result
from dsinga.api.workspaces import trained_params
from dsinga.base.argument_types import typed
from dsinga.base.arguments import check_whole
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.data import FieldWindows
from dsinga.data.array_kinds import is_a
from dsinga.job import Job, Phase, load
from dsinga.job.enums import find_phase
from dsinga.net import NeuralNet
from dsinga.net.layer_classes import with_member
from dsinga.passes import inference
from dsinga.passes.evaluation import Forward
from dsinga.passes.field_evaluation import GroupedErrors
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.bind_records import has_no_rows, row_of_zeros

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client


class OpenPhase(NamedTuple):
    """What is computed of a phase, and where.

    Attributes:
        job: the job, with the data of the call.
        phase: the phase.
        params: the params, by name.
        roots: the folders where relative paths are looked up.
        net: the net of the phase.
        reader: reads its batches.
        forward: its forward passes, in threads of this process or on a cluster.
        client: a client of that cluster, None for threads of this process.
        selection: the Dask workers that may compute, None for threads of this process.
    """

    job: Job
    phase: Phase
    params: ParamArrays
    roots: Sequence[str]
    net: NeuralNet
    reader: BatchReader
    forward: Forward
    client: Any
    selection: cluster.WorkerSelection | None


@contextlib.contextmanager
def open_phase(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    phase: str,
    client: Any,
    data: Any,
    data_root: str | None,
    resources: Mapping[str, float] | None,
    hosts: Sequence[str],
    layer: str | None = None,
) -> Iterator[OpenPhase]:
    """Yield a phase of a job. Arguments are those of :func:`dsinga.predict`; without a ``layer`` the net has all.

    Errors that leave the block keep no nets and params in their tracebacks. Raises UserError for bad input.
    """
    job_phase = find_phase(phase)
    job = job_with_data(job, data, job_phase, data_root, params)
    folders = roots(job, data_root)
    trained = trained_params(job, params, folders)
    source = find_cluster(client, waits=True)
    with contextlib.ExitStack() as stack:
        if source.computes_here(asks_for_cluster=bool(resources or hosts)):
            selection, opened, forward = None, None, inference.forward_in_threads(job, trained)
        else:
            selection = select_workers(resources, hosts)
            opened = stack.enter_context(source.open(patience=patience_of(job)))
            forward = cluster.forward_on_cluster(job, opened, trained, selection)
        stack.enter_context(cleared_frames("dsinga"))
        net, reader = inference.open_phase(job, trained, job_phase, folders, layer)
        yield OpenPhase(job, job_phase, trained, folders, net, reader, forward, opened, selection)


@awaitable
@typed()
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
    with open_phase(job, params, phase, client, data, data_root, resources, hosts) as opened:
        say_overlaps(opened.job, opened.phase)
        return inference.evaluate_phase(opened.net, opened.reader, opened.forward)


@awaitable
@typed()
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
    batches = predict_batches(
        job, params, layer, phase, client, data=row_of_zeros(data) if is_empty else data, data_root=data_root,
        resources=resources, hosts=hosts,
    )  # fmt: skip
    return np.concatenate(list(batches))[: 0 if is_empty else None]


@typed()
def predict_lazily(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    x: Any,
    phase: str = "test",
    *,
    leads: int | None = None,
    members: int | None = None,
    data_root: str | None = None,
) -> Any:
    """Return the output of ``layer`` for a dask array or an xarray Dataset, computed when it is asked for.

    For a dask array ``x`` of records it is a dask array; Dask computes it chunk by chunk wherever it computes, in
    bounded memory. Numbers that are not finite are not refused: their records give what the net computes from them.

    For a Dataset or DataArray ``x``, or the path of one, it is a Dataset of the targets of the windows that the job was
    trained from, see :func:`dsinga.windows`: whole fields, computed tile by tile, with the targets' dimensions,
    coordinates and attributes. Tiles follow from the net and the size of the field, so that the numbers have the same
    bits however ``x`` and the result are in chunks. NaN that is not masked is refused when it is computed. With
    ``leads`` predictions are fed back as inputs so many times, and targets have the dimension "lead"; inputs along time
    that are not predicted are read at the later times, static fields are the same, and coordinates go on.

    With ``members`` the net is drawn so many times from those that its dropout trains, and the result has the first
    dimension, or axis, "member"; each member is one net at all points, records and leads.

    Other arguments are those of :func:`predict`. Raises UserError for bad input.
    """
    job_phase = find_phase(phase)
    if members is not None:
        check_whole("members", members, 1)
        from dsinga.cluster.inference.lazy_prediction import join_members

        known = load(job) if isinstance(job, (str, os.PathLike)) else job
        jobs = [with_member(known, member) for member in range(1, members + 1)]
        return join_members(
            [predict_lazily(job, params, layer, x, phase, leads=leads, data_root=data_root) for job in jobs]
        )
    if is_a(x, "xarray", "Dataset", "DataArray") or isinstance(x, (str, os.PathLike)):
        from dsinga.addons.fields.prediction.field_prediction import predict_dataset

        job = job_with_data(job, None, job_phase, data_root)
        where = roots(job, data_root)
        return predict_dataset(job, trained_params(job, params, where), layer, x, job_phase, where, leads=leads)
    if leads is not None:
        raise UserError("leads are those of a Dataset, whose windows have a lead; leave leads out for a dask array")
    from dsinga.cluster.inference import lazy_prediction

    job = job_with_data(job, x, job_phase, data_root, params)
    where = roots(job, data_root)
    return lazy_prediction.predict_lazily(job, trained_params(job, params, where), layer, x, job_phase, where)


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
    for feature, _ in predict_with_labels(
        job, params, layer, phase, client, data=data, data_root=data_root, resources=resources, hosts=hosts
    ):
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
    with open_phase(job, params, phase, client, data, data_root, resources, hosts, layer) as opened:
        yield from inference.predict(opened.net, opened.reader, layer, opened.forward)


@awaitable
@typed()
def evaluate_fields(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    by: Any = (),
    against: Any = (),
    data: Any = None,
    data_root: str | None = None,
    resources: Mapping[str, float] | None = None,
    hosts: Sequence[str] = (),
) -> Any:
    """Return the errors of ``layer`` as a prediction of the targets of windows, by group, as an xarray Dataset.

    It has "rmse", "mae" and "bias" (prediction - target), and "count", the numbers that were compared. Points that are
    masked are left out, and windows with weights weigh points. Sums of all groups are made in one pass in float64.

    Args:
        job: as for :func:`dsinga.predict`, as are ``params``, ``phase`` and ``client``.
        params: arrays by name, a result, or the path of a checkpoint.
        layer: the layer whose output is the prediction.
        phase: "train", "val" or "test".
        client: a Dask client.
        by: what errors are divided by, a name or several, each a dimension of the result: "variable"; "lead"; "season",
            "month", "year", "dayofyear" or "hour" of the time of the target; a dimension of the targets, such as
            "level", or ("lat", "lon") for maps; regions, {"tropics": {"lat": (-20, 20)}}, which may overlap; a
            DataArray with the name or number of an area at each point.
        against: forecasts that are compared on the same points, along the dimension "forecast": "persistence", the
            target at the last point of the inputs; a climatology of :func:`dsinga.data.field_climatology`, with which
            there is "anomaly_correlation", too; or a list of both.
        data: windows, or a Dataset of which the job's windows are cut; by default those that the job names.
        data_root: the folder where relative paths are looked up last.
        resources: amounts by name that Dask workers must have.
        hosts: the hosts on which Dask workers compute.

    Raises:
        UserError: groups or baselines that the windows do not have, and other bad input.
    """
    with open_phase(job, params, phase, client, data, data_root, resources, hosts, layer) as opened:
        say_overlaps(opened.job, opened.phase)
        given = [source for source in opened.reader.stores.values() if isinstance(source, FieldWindows)]
        if len(given) != 1:
            raise UserError("groups of errors are those of windows of a Dataset; give some, as of dsinga.windows")
        (windows,) = given
        errors = GroupedErrors(windows, by, against)
        if windows.leads is None:
            records = inference.predict(opened.net, opened.reader, layer, opened.forward)
            return errors.add_all(batch.data for batch in records).dataset()
        from dsinga.addons.fields.prediction.rollout_records import rollout_records

        return errors.add_all(
            rollout_records(
                opened.job, opened.params, layer, windows, opened.phase, opened.roots, opened.client, opened.selection
            )
        ).dataset()
