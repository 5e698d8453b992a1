"""Lazy prediction: the feature of a layer as a dask array, computed block by block by Dask, also of an ensemble."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.data.missing_values import plain_array, with_nan
from dsinga.job import Job, Phase
from dsinga.passes.inference import open_phase
from dsinga.passes.predictor import Predictor

MEMBER = "member"


def predict_lazily(
    job: Job, params: ParamArrays, layer: str, x: Any, phase: Phase = Phase.kTest, roots: Sequence[str] = ()
) -> Any:
    """Return the feature of ``layer`` for the records of the dask array ``x``, as a dask array (len(x), ...).

    The input layer of the job must be bound to ``x``. Each chunk of ``x`` is one task, which computes it in batches
    that take bounded memory. The net and its params are one object in the task graph, which Dask sends to each worker
    once. Raises UserError for what is wrong with the job, ``x`` or the params.
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
    """Return the dask array of ``shared.method(chunk, **arguments)`` for each chunk of records of the dask array ``x``.

    The method gets numpy arrays. ``shared`` is a delayed object, and ``sample`` (1, ...) the result for one record.
    """
    empty = np.empty((0, *sample.shape[1:]), sample.dtype)
    return x.map_blocks(
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


def _compute_chunk(block: Any, shared: Any, method: str, arguments: dict[str, Any], empty: np.ndarray) -> np.ndarray:
    """Task: the result of one chunk of records; ``empty`` is that of a chunk without any."""
    result: np.ndarray = getattr(shared, method)(plain_array(block, "x"), **arguments) if len(block) else empty
    return result


def join_members(predictions: Sequence[Any]) -> Any:
    """Return lazy Datasets, or dask arrays, of members as one, whose first dimension is "member", from 1.

    Raises UserError where predictions have that dimension already.
    """
    first = predictions[0]
    if isinstance(first, da.Array):
        return da.stack(predictions)
    if MEMBER in first.dims or MEMBER in first.data_vars:
        raise UserError(
            f"predictions have {MEMBER!r} already, of the data or of a loss of an ensemble; rename that of "
            "the data, or leave members out"
        )
    joined = first.drop_vars(MEMBER, errors="ignore")  # of the data, which may be those of a single member
    for name, variable in first.data_vars.items():
        if variable.chunks is not None:  # others are grid mappings and bounds
            array = da.stack([prediction[name].data for prediction in predictions])
            joined[name] = ((MEMBER, *variable.dims), array, variable.attrs, variable.encoding)
    return joined.assign_coords({MEMBER: np.arange(1, len(predictions) + 1)})
