"""The tasks of the prediction of a Dataset: one for each block of the result and, where it is fed back, each lead."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dask
import dask.array as da
import numpy as np

from dsinga.base.errors import UserError
from dsinga.cluster.inference.prediction_blocks import PredictionBlocks
from dsinga.cluster.inference.tile_graph import BlockPlan, map_selections
from dsinga.data.fields.leads import lead_axis
from dsinga.data.fields.prediction_windows import PredictionWindows
from dsinga.passes.field_predictor import FieldPredictor, PredictionBlock
from dsinga.passes.field_rollout import FedBack, FieldRollout

MOST_TASKS = 1 << 20  # of a prediction of several leads: a task takes about a millisecond before the first one runs
LEAST_TASKS = 16  # for which each lead counts


def map_blocks(predictor: FieldPredictor, arrays: Mapping[str, da.Array], blocks: PredictionBlocks) -> da.Array:
    """Return the prediction as a dask array, a task for each block of it."""
    return _map(_predict_block, _shared(predictor), arrays, blocks, blocks.plans())


def map_leads(
    predictor: FieldPredictor,
    arrays: Mapping[str, da.Array],
    blocks: PredictionBlocks,
    windows: PredictionWindows,
    leads: int,
) -> list[da.Array]:
    """Return the prediction of each lead as a dask array, a task for each block, which takes those of earlier leads.

    Raises UserError for too many tasks.
    """
    check_tasks(leads, len(blocks))
    rollout = FieldRollout(predictor, lead_axis(windows).name, _fed_back(windows))
    shared = _shared(rollout)
    predictions: list[da.Array] = []
    for lead in range(1, leads + 1):
        earlier = {f"lead {number}": predictions[number - 1] for number in rollout.earlier(lead)}
        plans = blocks.plans_of_lead(rollout, lead)
        predictions.append(_map(_predict_lead, shared, arrays, blocks, plans, earlier))
    return predictions


def _map(
    function: Callable[..., np.ndarray],
    predictor: Any,
    arrays: Mapping[str, da.Array],
    blocks: PredictionBlocks,
    plans: Iterator[BlockPlan],
    earlier: Mapping[str, da.Array] | None = None,
) -> da.Array:
    """Return the dask array of ``function(predictor, selections, *arguments)``."""
    name = f"dsinga-fields-{uuid.uuid4().hex}"
    return map_selections(function, predictor, arrays, plans, blocks.chunks, np.float32, name, earlier)


def _shared(predictor: Any) -> Any:
    """Return an object, with the net and its params, as a single one of a task graph."""
    return dask.delayed(predictor, name=f"dsinga-net-{uuid.uuid4().hex}", traverse=False)


def _predict_block(predictor: FieldPredictor, values: Mapping[str, np.ndarray], block: PredictionBlock) -> np.ndarray:
    """Task: the prediction of a block."""
    return predictor.predict(values, block)


def _predict_lead(
    rollout: FieldRollout, values: Mapping[str, np.ndarray], block: PredictionBlock, lead: int
) -> np.ndarray:
    """Task: the prediction of a block for a lead."""
    return rollout.predict(values, block, lead)


def _fed_back(windows: PredictionWindows) -> dict[str, FedBack]:
    """Return the targets that are inputs, too."""
    inputs = {part.name for part in windows.layout.inputs}
    axes = windows.layout.axes
    return {
        target.name: FedBack(
            windows.channel_slice(target), target.channel_dims, tuple(axes[dim].size for dim in target.channel_dims)
        )
        for target in windows.targets
        if target.name in inputs
    }


def check_tasks(leads: int, blocks: int) -> None:
    """Raise UserError for so many leads that Dask would take minutes for their tasks before the first one runs."""
    if leads * blocks > MOST_TASKS:
        remedy = ", or predict fewer steps of time: ds.isel(time=slice(-10, None))" if blocks > LEAST_TASKS else ""
        raise UserError(
            f"{leads} leads are too many for one prediction; give at most {MOST_TASKS // blocks} of these data{remedy}"
        )
