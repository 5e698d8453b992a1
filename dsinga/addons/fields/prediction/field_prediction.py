"""Predicts a Dataset: makes a lazy Dataset of the targets, which Dask computes tile by tile."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from dsinga.addons.fields.lead_feedback import lead_axis, windows_for_leads
from dsinga.addons.fields.prediction.predicted_dataset import dataset_of_leads, predicted_dataset
from dsinga.addons.fields.prediction.prediction_blocks import BlockPlan, PredictionBlocks, map_selections
from dsinga.addons.fields.prediction.predictor import FieldPredictor, MaskedTarget, described
from dsinga.addons.fields.prediction.rollout import FedBack, FieldRollout
from dsinga.addons.fields.prediction.tiles import FieldTiles, plan_tiles
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.prediction_windows import CLASS, PredictionWindows, apply_windows, with_known_times
from dsinga.addons.fields.records.trained_layout import with_trained_layout
from dsinga.base.arguments import check_whole
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import implements, register
from dsinga.data import resolve
from dsinga.data.sources.dask_arrays import cluster_futures
from dsinga.job import Job, Phase
from dsinga.layers import RecordInfo
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.layer import Shape
from dsinga.layers.losses.point_classes import PointClasses
from dsinga.net import NeuralNet, create_net, input_layers, without_labels
from dsinga.net.layer_classes import forecast_form, layer_class
from dsinga.passes.inference import PredictDataset
from dsinga.passes.predictor import Predictor, row_bytes
from dsinga.reading.open_layer import moments_of

BATCH_BYTES = 1 << 25  # of the features of all layers for a call, where a row takes less
MOST_ROWS = 64  # of a call
MOST_TASKS = 1 << 20  # of a prediction of several leads: a task takes about a millisecond before the first one runs
LEAST_TASKS = 16  # of a lead, assumed until its blocks are known


@register("hook", "predict_dataset")
@implements(PredictDataset)
def predict_dataset(
    job: Job,
    params: ParamArrays,
    layer: str,
    dataset: Any,
    phase: Phase = Phase.kTest,
    roots: Sequence[str] = (),
    definition: WindowDefinition | None = None,
    leads: int | None = None,
) -> Any:
    """Return a lazy Dataset with the predicted targets of a Dataset's windows.

    Its variables have the names, dimensions, coordinates and attributes of the targets; ``layer`` gives their numbers.

    With ``leads``, predictions are fed back as inputs that many times (:class:`FieldRollout`), and the result has the
    dimension "lead". A net of the direct form has its leads as channels.
    """
    if leads is not None:
        check_whole("leads", leads, 1)
        check_tasks(leads, LEAST_TASKS)
    definition = definition or windows_of(job, phase, roots)
    direct = definition.leads if definition.direct else 1
    if direct > 1 and leads not in (None, direct):
        raise UserError(f"the net gives {direct} leads at once, not {leads}; leave leads out")
    leads = None if direct > 1 else leads
    windows = find_windows(dataset, definition, leads, direct)
    windows, predictions = predict_windows(job, params, layer, windows, phase, roots, leads, direct)
    if leads is not None or direct > 1:
        return dataset_of_leads(windows, predictions)
    return predicted_dataset(windows, predictions[0])


def windows_of(job: Job, phase: Phase, roots: Sequence[str] = ()) -> WindowDefinition:
    """Return the window settings of a phase's input layer, or else of training."""
    for each in (phase, Phase.kTrain, Phase.kVal):
        for conf in input_layers(job.neuralnet, each):
            store = conf.store_conf
            if store is not None and store.windows is not None:
                definition = store.windows
                if not definition.is_trained and store.path:
                    with contextlib.suppress(UserError):
                        return with_trained_layout(resolve(store.path, roots), definition)
                return definition
    raise UserError(
        "the job does not say what windows of a Dataset are; train it from dsinga.windows(dataset, ...), or give its "
        "input layer store_conf { windows { ... } }; for records along one dimension, give a dask array"
    )


def predict_windows(
    job: Job,
    params: ParamArrays,
    layer: str,
    windows: PredictionWindows,
    phase: Phase,
    roots: Sequence[str],
    leads: int | None,
    direct: int = 1,
    most: int | None = None,
) -> tuple[PredictionWindows, list[da.Array]]:
    """Return the windows, and each lead's prediction, a dask array (windows ..., C', points of space ...).

    ``most`` is the largest number of windows along time in a task, unless one call of the net needs more.
    """
    tiles, source = plan_fields(job, params, layer, windows, phase, roots)
    windows = with_outputs(job, windows, layer, tiles.net.layer(layer).shape[1:], leads, direct)
    predictor = make_predictor(Predictor(tiles.net, params, seed=job.seed), source, layer, windows, tiles, direct)
    arrays = lazy_variables(predictor, windows)
    blocks = PredictionBlocks(predictor, arrays, windows.times, most)
    if leads is not None:
        return windows, map_leads(predictor, arrays, blocks, windows, leads)
    prediction = map_blocks(predictor, arrays, blocks)
    before, count = (slice(None),) * len(windows.samples), predictor.channels // direct
    return windows, [prediction[(*before, slice(lead * count, (lead + 1) * count))] for lead in range(direct)]


def find_windows(
    dataset: Any,
    definition: WindowDefinition,
    leads: int | None,
    direct: int = 1,
    starts: Mapping[str, Any] | None = None,
) -> PredictionWindows:
    """Cut windows of a definition out of a Dataset, with targets at known times, at each lead.

    ``direct`` is the number of leads that a net gives at once, and ``starts`` the first points of windows by dimension
    of samples.
    """
    windows = apply_windows(dataset, definition, starts)
    windows = with_known_times(windows, leads or direct)
    if direct > 1:
        windows.layout.check_lead_names(definition.targets)
    return windows if leads is None else windows_for_leads(windows, leads)


def plan_fields(
    job: Job, params: ParamArrays, layer: str, windows: PredictionWindows, phase: Phase, roots: Sequence[str]
) -> tuple[FieldTiles, str]:
    """Plan the tiles in which the net computes the fields; also return the name of its input layer."""
    inputs = input_layers(job.neuralnet, phase)
    if len(inputs) != 1:
        raise UserError(
            f"prediction of a Dataset takes nets with one input layer, but phase {phase.name} has "
            f"{[conf.name for conf in inputs] or 'none'}"
        )
    (conf,) = inputs
    store = conf.store_conf
    files = moments_of(store, roots)
    layers = [
        each.replace(store_conf=store.replace(shape=[])) if each is conf and store is not None else each
        for each in job.neuralnet.layer
    ]
    net_conf = job.neuralnet.replace(layer=layers)
    channels = windows.layout.input_shape[0]

    def make_net(size: Shape) -> NeuralNet:
        infos = {conf.name: RecordInfo((channels, *size), 1, has_labels=False, **files)}
        net = create_net(without_labels(net_conf, phase, infos, layer), phase, infos)
        net.position(layer)  # raises UserError
        return net

    trained, lengths = _window_size(windows), windows.layout.input_shape[1:]
    outputs, margins = tuple(axis.size for axis in windows.space), tuple(map(windows.margins, windows.space))
    return plan_tiles(make_net, params, layer, trained, lengths, outputs, margins), conf.name


def _window_size(windows: PredictionWindows) -> Shape:
    """Return the size of the net's training windows, with context; the field's size if unknown."""
    sizes, trained = [], windows.definition.input_dims
    for axis in windows.space:
        size = trained.get(axis.name, -1)
        sizes.append(axis.input_size if size == -1 else size + axis.before + axis.after)
    return tuple(sizes)


def with_outputs(
    job: Job, windows: PredictionWindows, layer: str, given: Shape, leads: int | None, direct: int = 1
) -> PredictionWindows:
    """Check that ``layer`` outputs the targets, and return the windows with its channels."""
    expected = direct * sum(map(windows.channels, windows.targets))
    if len(given) == 1 + len(windows.space):
        if given[0] == expected:
            return windows
        classes = any(issubclass(layer_class(conf), PointClasses) for conf in job.neuralnet.layer)
        numbers: Any = (CLASS, range(given[0])) if classes and expected == 1 and leads is None else None
        for form in filter(None, map(forecast_form, job.neuralnet.layer)):
            if numbers is None and given[0] == expected * form.count:
                numbers = form.dim, form.points
                if leads is not None:
                    raise UserError(
                        f"leads feed predictions back as inputs, but layer {layer!r} gives {form.count} numbers for "
                        f"each, along {form.dim!r}; leave leads out, or train with a lead as long as is needed"
                    )
        if numbers is not None:
            return windows.with_numbers(*numbers)
    names = ", ".join(f"{target.name} ({windows.channels(target)})" for target in windows.targets)
    raise UserError(
        f"layer {layer!r} gives {shape_text(given)} for a window, but the targets have {expected} channels: {names}"
        f"{f', each at {direct} leads' if direct > 1 else ''}; "
        "name the layer whose feature is the prediction"
    )


def make_predictor(
    predictor: Predictor, source: str, layer: str, windows: PredictionWindows, tiles: FieldTiles, direct: int = 1
) -> FieldPredictor:
    """Create the object that predicts blocks of windows and tiles in Dask tasks; it is sent once."""
    channels, masked = sum(map(windows.channels, windows.targets)), list(_masked_targets(windows))
    rows = max(1, min(MOST_ROWS, BATCH_BYTES // max(1, row_bytes(tiles.net))))  # whatever the number of windows
    return FieldPredictor(
        predictor,
        source,
        layer,
        described(windows.layout),
        [axis.name for axis in windows.samples],
        tiles.axes,
        rows,
        direct * channels,
        [_later(target, lead * channels) for lead in range(direct) for target in masked],
    )


def _later(target: MaskedTarget, channels: int) -> MaskedTarget:
    return target._replace(channels=slice(target.channels.start + channels, target.channels.stop + channels))


def _masked_targets(windows: PredictionWindows) -> Iterator[MaskedTarget]:
    layout = windows.layout
    first = sum(part.channels for part in layout.inputs)
    masks = {}
    for part in layout.inputs:
        if part.masked:
            masks[part.name] = (part, slice(first, first + part.channels))
            first += part.channels
    for target in windows.targets:
        if target.name in masks and (windows.numbers is None or windows.numbers[0] != CLASS):
            part, mask = masks[target.name]
            taken = []
            for dim in target.channel_dims[: -1 if windows.numbers else None]:
                axis = layout.axes[dim]
                last = axis.before + axis.size
                taken.append((last - 1,) * axis.size if dim in windows.times else tuple(range(axis.before, last)))
            count = len(windows.numbers[1]) if windows.numbers else 1
            yield MaskedTarget(windows.channel_slice(target), mask, part.channel_sizes, tuple(taken), count)


def lazy_variables(predictor: FieldPredictor, windows: PredictionWindows) -> dict[str, da.Array]:
    """Return the variables that tasks read, as dask arrays by name, with as few tasks as needed."""
    arrays = {part.name: _as_dask(windows.dataset[part.name].variable) for part in predictor.variables}
    optimised = [name for name, array in arrays.items() if not cluster_futures(array)]  # which would lose the others
    return arrays | dict(zip(optimised, dask.optimize(*(arrays[name] for name in optimised)), strict=True))


def _as_dask(variable: Any) -> da.Array:
    """Turn an xarray Variable into a dask array, with the chunks of its file."""
    if variable.chunks is None:
        preferred = variable.encoding.get("preferred_chunks") or {}
        variable = variable.chunk({dim: preferred.get(dim, -1) for dim in variable.dims} if preferred else "auto")
    return variable.data


def map_blocks(predictor: FieldPredictor, arrays: Mapping[str, da.Array], blocks: PredictionBlocks) -> da.Array:
    """Build the prediction as a dask array with one task per block."""
    return _map(FieldPredictor.predict, _shared(predictor), arrays, blocks, blocks.plans())


def map_leads(
    predictor: FieldPredictor,
    arrays: Mapping[str, da.Array],
    blocks: PredictionBlocks,
    windows: PredictionWindows,
    leads: int,
) -> list[da.Array]:
    """Build each lead's prediction as a dask array; each block's task uses earlier leads."""
    check_tasks(leads, len(blocks))
    fed_back, axis = _fed_back(windows), lead_axis(windows.layout)
    rollout = FieldRollout(predictor, axis.name, fed_back)
    shared = _shared(rollout)
    predictions: list[da.Array] = []
    for lead in range(1, leads + 1):
        earlier = {f"lead {number}": predictions[number - 1] for number in rollout.earlier(lead)}
        plans = blocks.plans_of_lead(rollout, lead)
        predictions.append(_map(FieldRollout.predict, shared, arrays, blocks, plans, earlier))
    return predictions


def _map(
    function: Callable[..., np.ndarray],
    predictor: Any,
    arrays: Mapping[str, da.Array],
    blocks: PredictionBlocks,
    plans: Iterator[BlockPlan],
    earlier: Mapping[str, da.Array] | None = None,
) -> da.Array:
    name = f"dsinga-fields-{uuid.uuid4().hex}"
    return map_selections(function, predictor, arrays, plans, blocks.chunks, np.float32, name, earlier)


def _shared(predictor: Any) -> Any:
    """Wrap an object, such as the net with params, as one node of a task graph that tasks share."""
    return dask.delayed(predictor, name=f"dsinga-net-{uuid.uuid4().hex}", traverse=False)


def _fed_back(windows: PredictionWindows) -> dict[str, FedBack]:
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
    """Raise UserError for so many blocks and leads that Dask would need minutes to set up their tasks."""
    if leads * blocks > MOST_TASKS:
        remedy = ", or predict fewer steps of time: ds.isel(time=slice(-10, None))" if blocks > LEAST_TASKS else ""
        raise UserError(
            f"{leads} leads are too many for one prediction; give at most {MOST_TASKS // blocks} of these data{remedy}"
        )
