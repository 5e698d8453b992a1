"""Lazy predictions: dask arrays and Datasets that are computed when they are asked for."""

from __future__ import annotations

import os
from typing import Any

from dsinga.api.jobs_with_data import job_with_data, roots
from dsinga.api.result import Result
from dsinga.api.workspaces import trained_params
from dsinga.base.argument_types import typed
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.base.registry import lookup, register
from dsinga.cluster.inference import lazy_prediction
from dsinga.cluster.inference.lazy_prediction import join_members
from dsinga.data.array_kinds import is_a
from dsinga.job import Job, load
from dsinga.job.enums import find_phase
from dsinga.net.layer_classes import with_member


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
        known = load(job) if isinstance(job, (str, os.PathLike)) else job
        jobs = [with_member(known, member) for member in range(1, members + 1)]
        return join_members(
            [predict_lazily(job, params, layer, x, phase, leads=leads, data_root=data_root) for job in jobs]
        )
    if is_a(x, "xarray", "Dataset", "DataArray") or isinstance(x, (str, os.PathLike)):
        job = job_with_data(job, None, job_phase, data_root)
        where = roots(job, data_root)
        predict_dataset = lookup("hook", "predict_dataset")
        return predict_dataset(job, trained_params(job, params, where), layer, x, job_phase, where, leads=leads)
    if leads is not None:
        raise UserError("leads are those of a Dataset, whose windows have a lead; leave leads out for a dask array")
    job = job_with_data(job, x, job_phase, data_root, params)
    where = roots(job, data_root)
    return lazy_prediction.predict_lazily(job, trained_params(job, params, where), layer, x, job_phase, where)
