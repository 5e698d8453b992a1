"""Predicts lazily: returns a layer's output for a dask array or a Dataset without computing it yet."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import Result, job_with_data, roots
from dsinga.api.workspaces import trained_params
from dsinga.base.arguments import check_whole
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, register
from dsinga.cluster.dask.written_arrays import written_apart
from dsinga.data.array_kinds import is_a
from dsinga.data.missing_values import plain_array, with_nan
from dsinga.data.own_inputs import inputs_of
from dsinga.job import Job, Phase, load
from dsinga.job.enums import find_phase
from dsinga.net.layer_classes import with_member
from dsinga.passes.inference import PredictDataset, open_phase
from dsinga.passes.predictor import Predictor

MEMBER = "member"


def predict_chunks(
    job: Job, params: ParamArrays, layer: str, x: Any, phase: Phase = Phase.kTest, roots: Sequence[str] = ()
) -> Any:
    """Return the lazy feature of ``layer`` for a dask array of records, (len(x), ...).

    The job's input layer must be bound to ``x``. Each chunk of ``x`` is one task, which computes batches in bounded
    memory.
    """
    if not isinstance(x, da.Array):
        raise UserError(f"predict_lazily takes a dask array, not a {type(x).__name__}; use predict")
    x = with_nan(x, "x")
    net, _ = open_phase(job, params, phase, roots, layer)
    net.position(layer)  # raises UserError
    if len(net.inputs) > 1:
        raise UserError(f"lazy prediction takes nets with one input layer, but phase {phase.name} has {[*net.inputs]}")
    predictor = Predictor(net, params, seed=job.seed)
    sample = predictor.predict(np.zeros((1, *x.shape[1:]), x.dtype), layer)
    if len(sample) != 1:
        raise UserError(f"layer {layer!r} does not have one row for each record; use predict_batches")
    shared = dask.delayed(predictor, name=f"dsinga-net-{uuid.uuid4().hex}", traverse=False)
    return map_chunks(x, shared, sample, "predict", layer=layer)


def map_chunks(x: Any, shared: Any, sample: np.ndarray, method: str, **arguments: Any) -> Any:
    """Call ``shared.method(chunk, **arguments)`` for each chunk of the records ``x``; return the lazy dask array.

    ``shared`` is a delayed object, and ``sample`` (1, ...) the result for one record.
    """
    empty = np.empty((0, *sample.shape[1:]), sample.dtype)
    result = x.map_blocks(
        _compute_chunk,
        shared,
        method=method,
        arguments=arguments,
        empty=empty,
        dtype=sample.dtype,
        chunks=(x.chunks[0], *((size,) for size in sample.shape[1:])),
        drop_axis=list(range(1, x.ndim)),
        new_axis=list(range(1, sample.ndim)) or None,
        meta=empty,
    )
    return written_apart(result, inputs_of(x))


def _compute_chunk(block: Any, shared: Any, method: str, arguments: dict[str, Any], empty: np.ndarray) -> np.ndarray:
    """Task: compute the result of one chunk of records; ``empty`` if the chunk has none."""
    result: np.ndarray = getattr(shared, method)(plain_array(block, "x"), **arguments) if len(block) else empty
    return result


def join_members(predictions: Sequence[Any]) -> Any:
    """Join the members' lazy Datasets or dask arrays along a first dimension "member", numbered from 1."""
    first = predictions[0]
    if isinstance(first, da.Array):
        return written_apart(da.stack(predictions), getattr(first, "inputs", ()))
    if MEMBER in first.dims or MEMBER in first.data_vars:
        raise UserError(
            f"predictions have {MEMBER!r} already, of the data or of a loss of an ensemble; rename that of "
            "the data, or leave members out"
        )
    joined = first.drop_vars(MEMBER, errors="ignore")  # the data's own coordinate, perhaps of a single member
    for name, variable in first.data_vars.items():
        if variable.chunks is not None:  # others are grid mappings and bounds
            array = da.stack([prediction[name].data for prediction in predictions])
            joined[name] = ((MEMBER, *variable.dims), array, variable.attrs, variable.encoding)
    return joined.assign_coords({MEMBER: np.arange(1, len(predictions) + 1)})


@register("hook", "predict_lazily")
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
    data_root: str | os.PathLike[str] | None = None,
) -> Any:
    """Return the output of ``layer`` for a dask array or an xarray Dataset, computed lazily.

    For a dask array ``x`` of records, returns a dask array. Dask computes it chunk by chunk in bounded memory. Numbers
    may be NaN or infinite.

    For a Dataset or DataArray ``x``, or its path, returns a Dataset of the targets of the windows that trained the job
    (:func:`dsinga.windows`). The targets are whole fields, computed tile by tile, with dimensions, coordinates and
    attributes. The chunks of ``x`` do not change a bit of the result. An unmasked NaN raises an error when it is
    computed.

    Another Dataset is read in the order of training: levels by coordinate, latitudes in the same direction, longitudes
    from the same one on, dimensions in the same order. The result has the order of ``x``. Steps of time that are one
    and a half times as long or as short are refused, unless windows count points; other units are logged. Dates may
    have another calendar. Time goes on beyond the data by its step, by months or by years; windows without such a rule
    are left out, which the log says. Grid mappings, bounds and encodings of coordinates are kept.

    A task computes tiles of at most 64 MiB, where the context of a tile is small. Points have the bits of the whole
    field, to float32 rounding for some transposed convolutions. A net that needs whole fields (Dense,
    GroupNormalization, LayerNormalization, a layer without ``reach``) computes one tile, of at most 8 GiB of features.
    Chunks of the result hold whole tiles. More than a million tasks with leads are refused.

    With ``leads``, predictions are fed back as inputs so many times, and targets have the dimension "lead". Other
    inputs along time are read at the later times. Static fields stay the same, and coordinates go on.

    With ``members``, the result has the first dimension, or axis, "member". Each member is one net drawn from those
    that the job's dropout trains, the same at all points, records and leads.

    Other arguments: see :func:`predict`. Raises UserError for bad input.
    """
    job_phase = find_phase(phase)
    if members is not None:
        check_whole("members", members, 1)
        known = load(job) if isinstance(job, (str, os.PathLike)) else job
        jobs = [with_member(known, member) for member in range(1, members + 1)]
        return join_members(
            [predict_lazily(job, params, layer, x, phase, leads=leads, data_root=data_root) for job in jobs]
        )
    job = job_with_data(job, None, job_phase, data_root)
    where = roots(job, data_root)
    trained = trained_params(job, params, where)
    if is_a(x, "xarray", "Dataset", "DataArray") or isinstance(x, (str, os.PathLike)):
        predict_dataset: PredictDataset = lookup("hook", "predict_dataset")
        return predict_dataset(job, trained, layer, x, job_phase, where, leads=leads)
    if leads is not None:
        raise UserError("leads are those of a Dataset, whose windows have a lead; leave leads out for a dask array")
    job = job_with_data(job, x, job_phase, data_root, trained)
    return predict_chunks(job, trained, layer, x, job_phase, where)
