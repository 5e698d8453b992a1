"""Training on a Dask cluster, on dask arrays or numpy arrays of any size."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.api import find_cluster, train
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.conversion import find_nonfinite, nonfinite_error, place_of
from dsinga.estimators.jobs import batchsize_of, input_name
from dsinga.estimators.local_training import Trained
from dsinga.estimators.records import Scaling, TrainingSet, standard_scaling, without_zeros
from dsinga.job import Job
from dsinga.monitor import NOT_METRICS, Row
from dsinga.net.sample_weights import SAMPLE_WEIGHT


def train_on_cluster(
    job: Job, records: TrainingSet, client: Any, before: Trained | None = None, validation: TrainingSet | None = None
) -> Trained:
    """Train a job on a cluster, from the params of ``before`` or from initial values, and return the result.

    ``client`` is that of :func:`running_client`; for None a cluster is started in this process for the run. Raises
    UserError for bad input.
    """
    data: dict[str, Any] = {"train": _sources(job, records)}
    job = _reported_by_epoch(job, len(records.x), tests=validation is not None)
    if validation is not None:
        weights = None if records.weights is None else np.ones(len(validation.x))
        data["test"] = _sources(job, validation._replace(weights=weights))
    params = None if before is None else before.params
    result = train(job, client, data=data, params=params, progress=False)
    history = [] if before is None else before.history
    return Trained(result.params, None, [*history, *_rows(result.history, len(history))])


@contextlib.contextmanager
def running_client(client: Any) -> Iterator[Any]:
    """Yield a Dask client of the cluster that :func:`dsinga.train` would use, None where that would start one."""
    source = find_cluster(client, waits=True)
    with source.open() if source.is_running else contextlib.nullcontext() as opened:
        yield opened


def compute(values: Any, client: Any) -> Any:
    """Return dask collections, in any nesting, computed on the cluster of ``client``, or of :func:`running_client`."""
    import dask

    with contextlib.nullcontext(client) if client is not None else running_client(None) as running:
        return dask.compute(values)[0] if running is None else running.compute(dask.delayed(values)).result()


def find_scaling(x: Any, weights: Any, client: Any, name: str = "X") -> Scaling:
    """Return the scaling to weighted mean 0 and deviation 1 of each column; a dask array is read twice.

    Raises UserError for NaN or infinity in a dask array, by the ``name`` of which messages call it.
    """
    if not is_dask_collection(x):
        return standard_scaling(x, weights)
    import dask.array as da

    mean = np.asarray(compute(da.average(x, axis=0, weights=weights), client), np.float64)
    _check_finite(x, mean, client, name)
    variance = compute(da.average(da.square(x - mean), axis=0, weights=weights), client)
    return Scaling(mean, without_zeros(np.sqrt(np.asarray(variance)), mean))


def find_range(x: Any, client: Any) -> Scaling:
    """Return the scaling of each column to [0, 1]; a dask array is read once."""
    low, high = (x.min(axis=0), x.max(axis=0))
    if is_dask_collection(x):
        low, high = compute((low, high), client)
    low = np.asarray(low, np.float64)
    _check_finite(x, low + high, client, "X")
    return Scaling(low, without_zeros(np.asarray(high) - low, low))


def _check_finite(x: Any, sums: np.ndarray, client: Any, name: str) -> None:
    """Raise UserError for the first number of ``x`` that is NaN or infinite, as ``sums`` of its columns then are.

    Scaled by such sums, all numbers of a column would be NaN, those of record 0 first.
    """
    if np.isfinite(sums).all() or not is_dask_collection(x) or not len(x):
        return
    import dask.array as da

    finite = da.isfinite(x.reshape(len(x), -1)).all(axis=1)
    row = int(compute(finite.argmin(), client))
    bad = find_nonfinite(np.asarray(compute(x[row : row + 1], client)))
    if bad is not None:  # else a weight is not finite, or the sum was too large
        raise nonfinite_error(f"dask array: {name!r}", bad.value, row, place_of(bad.position))


def _sources(job: Job, records: TrainingSet) -> dict[str, Any]:
    name = input_name(job)
    main = records.x if records.y is None else (records.x, records.y)
    return {name: main} if records.weights is None else {name: main, SAMPLE_WEIGHT: records.weights.astype(np.float32)}


def _reported_by_epoch(job: Job, length: int, tests: bool) -> Job:
    """Return the job with a row of metrics for each epoch, which a job with ``epochs`` writes without frequencies.

    ``tests`` says whether there are records to test on.
    """
    steps = 0 if job.epochs else math.ceil(length / batchsize_of(job))
    return job.replace(disp_freq=steps, test_freq=steps if tests else 0)


def _rows(history: Any, before: int) -> list[Row]:
    """Return a row for each epoch from the rows of a run's phases."""
    rows: dict[int, Row] = {}
    for row in history:
        if row["step"] == 0:  # a test before training
            continue
        metrics = {name: value for name, value in row.items() if name not in NOT_METRICS}
        prefix = "" if row["phase"] == "train" else "val_"
        kept = rows.setdefault(row["step"], {"epoch": before + len(rows) + 1, "step": row["step"]})
        kept.update({f"{prefix}{name}": value for name, value in metrics.items()})
    return list(rows.values())
