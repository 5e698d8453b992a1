"""Evaluates predictions of windows of a Dataset by groups: variables, leads, seasons, maps, regions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsinga.addons.fields.evaluation.grouped_errors import GroupedErrors
from dsinga.addons.fields.prediction.rollout_records import rollout_records
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.api.engines import awaitable
from dsinga.api.inference import open_phase
from dsinga.api.jobs_with_data import say_overlaps
from dsinga.api.result import Result
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.job import Job
from dsinga.passes import inference

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client


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
        leads = rollout_records(
            opened.job, opened.params, layer, windows, opened.phase, opened.roots, opened.compute
        )  # fmt: skip
        return errors.add_all(leads).dataset()
