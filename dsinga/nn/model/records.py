"""Prepares data for a model: labels, sample weights, shapes, and input layers that read them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from dsinga.base.arguments import counted
from dsinga.base.errors import OtherRecords, UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.data import RecordNames, RecordSource
from dsinga.data.array_kinds import frame_columns, is_dask_collection, is_frame, is_table
from dsinga.data.sources.batch_sequences import Batches, DrawnRecords
from dsinga.job import Job, Phase, StoreConf
from dsinga.job.enums import PHASES
from dsinga.net.build import NoLabels
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.model.given_data import as_codes
from dsinga.nn.model.kept_nets import KeptNets
from dsinga.nn.model.labels import labels_first, loss_of_labels, without_missing
from dsinga.reading.given import Pair, PhaseRecords, definition_for, open_inputs
from dsinga.reading.pairs import Data, WeighedPairs, as_pair, pair_up, read_label_paths

# Settings of an input layer for reading its store, besides the path.
READING = ("backend", "separator", "shape", "encoded", "has_label", "data", "label")


def times_of(
    phases: Mapping[str, PhaseRecords], epochs: int | None, steps: int | None, fields: Mapping[str, Any]
) -> dict[str, int]:
    """Convert ``epochs`` or ``train_steps`` to the job fields for the length of training, reports and validation."""
    if steps is not None and epochs is not None:
        raise UserError("give epochs or train_steps, not both")
    if epochs is not None:  # metrics and validation at the end of each epoch
        times = {"epochs": epochs, "train_steps": 0, "disp_freq": 0, "validate_freq": 0, "test_freq": 0}
    elif steps is not None:
        every = max(1, steps // 10)
        often = {"validate_freq": every * ("val" in phases), "test_freq": every * ("test" in phases)}
        times = {"train_steps": steps, "epochs": 0, "disp_freq": every, **often}
    else:
        times = {}
    return {name: value for name, value in times.items() if name not in fields}


def label_inputs_for(model: Any, x: Any) -> list[str]:
    """Return the input layers with the labels of each output; ``x`` gives shapes if they are unknown."""
    with contextlib.suppress(UserError):
        return model.label_inputs()
    if not model.record_shapes and x is not None:
        names, definitions = model.trained.names, model.trained_definitions()
        model.record_shapes = open_inputs(unlabelled(model, x), names, definitions, has_labels=False).shapes
    return model.label_inputs()


def labelled(model: Any, data: Data) -> WeighedPairs:
    """Return each input's records and labels, and sample weights that are 0 for missing labels."""
    x, y, weights = data
    if x is None and y is None and weights is not None:
        raise UserError("sample_weight needs x, the records that it weighs")
    inputs = model.input_names()
    _check_words(x, y, inputs)
    y, weights = without_missing(y, weights, loss_of_labels(model))
    x, y = as_pair(x, y, inputs)
    y = read_label_paths(y, len(label_inputs := label_inputs_for(model, x)))
    y = model.as_labels(labels_first(y) if model.has_channels_last() else y)
    return WeighedPairs(_as_codes(model, pair_up(x, y, inputs, label_inputs)), weights)


def _check_words(x: Any, y: Any, inputs: Sequence[str]) -> None:
    """Raise UserError for labels given as a column name, and for a dict of records and labels."""
    if isinstance(y, str) and is_table(x):
        columns = frame_columns(x) if is_frame(x) else [*x.schema.names] if hasattr(x, "schema") else []
        if y in columns:
            raise UserError(f"{y!r} is a column of x; write fit(dsinga.table(x, label={y!r}))")
        raise UserError(f"x has no column {y!r}{nearest_or_listed(y, map(str, columns), 'the columns are')}")
    if type(x) is dict and y is None and len(inputs) == 1 and len(x) == 2 and not {*inputs} & {*x}:
        records, labels = x
        raise UserError(f"x is a dict without the input {inputs[0]!r}; write fit(x[{records!r}], x[{labels!r}])")


def unlabelled(model: Any, x: Any) -> dict[str, Pair]:
    """Return each input's records for predictions, converted as in training."""
    names = model.input_names()
    pairs = _as_codes(model, pair_up(*as_pair(x, None, names), names, names[:1]))
    return {name: (records, None) for name, (records, _) in pairs.items()}


def _as_codes(model: Any, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    """Replace texts and sequences in each input's records by arrays of codes."""
    encoders, definitions = model.text_encoders(), model.trained_definitions()
    for name, (x, _) in pairs.items():
        for definition in definitions.get(name, {}).values():
            definition.check_source(x)
    return {name: (as_codes(x, name, encoders), y) for name, (x, y) in pairs.items()}


def opened(
    model: Any, pairs: Mapping[str, Pair], weights: Any = None, train: PhaseRecords | None = None
) -> PhaseRecords:
    """Open each input's data with columns and classes in the order of training; add sample weights.

    Pass the training data as ``train`` for a model that was never trained.
    """
    train = train or PhaseRecords()
    definitions = model.trained_definitions() or train.definitions
    records = open_inputs(pairs, model.trained.names or train.names, definitions)
    if weights is not None:
        records.add_weights(weights)
    return records


@contextlib.contextmanager
def explained(
    model: Any, pairs: Mapping[str, Pair], held_out: Mapping[str, Pair] = MappingProxyType({})
) -> Iterator[None]:
    """Name both shapes in an error raised inside this context, if records differ in shape from training."""
    of_records = (name for name, (x, _) in pairs.items() if isinstance(x, RecordSource) and x.job_settings())
    encoded = {*model.trained_definitions(), *of_records}
    before_fault, shapes = dict(model.record_shapes), shapes_of(pairs, encoded)
    trained = {} if model._params is None else before_fault
    try:
        yield
    except UserError as error:
        model.record_shapes, model._kept = before_fault, KeptNets()
        if isinstance(error, OtherRecords):
            raise
        rows = {name: shape[1:] for name, shape in shapes.items()}
        if isinstance(error, NoLabels):
            raise UserError(_no_labels(pairs, held_out)) from None
        if fault := wrong_shape(shapes, trained):
            raise UserError(fault) from None
        for name, shape in shapes_of(held_out, encoded).items():
            if name in rows and shape[1:] != rows[name]:
                raise UserError(f"validation_data has records of shape {shape[1:]}, but x of {rows[name]}") from error
        raise


def _no_labels(pairs: Mapping[str, Pair], held_out: Mapping[str, Pair]) -> str:
    """Return the error message for training or validation data without labels."""
    if any(y is not None or isinstance(x, RecordSource) for x, y in pairs.values()) and held_out:
        return "validation_data has no labels; give validation_data=(x_val, y_val), or records that have labels"
    kind = next((type(x).__name__ for x, _ in pairs.values()), "")
    if any(isinstance(x, RecordSource) for x, _ in pairs.values()):
        return "x has no labels, which the loss needs; name them where x is made, as in dsinga.table(frame, label=...)"
    windows = ", or dsinga.windows(dataset, inputs=..., targets=...)" if kind in ("Dataset", "DataArray") else ""
    return f"x has no labels, which the loss needs; give y, as in fit(x, y){windows}"


def with_tables_open(
    pairs: Mapping[str, Pair], names: Mapping[str, RecordNames], definitions: Mapping[str, dict[str, Any]]
) -> dict[str, Pair]:
    """Open tables and other sources among records and labels, with classes in the order of training."""
    tables = {
        name: (x, y)
        for name, (x, y) in pairs.items()
        if definition_for(definitions.get(name, {}), (x, y)) or (isinstance(x, RecordSource) and not x.has_weights)
    }
    sources = open_inputs(tables, names, definitions).sources
    return {**pairs, **{name: (source, None) for name, source in sources.items()}}


def weighted_phases(phases: Mapping[str, PhaseRecords]) -> list[Phase]:
    """Return the phases (training, validation, test) that have sample weights."""
    return [PHASES[name] for name, records in phases.items() if SAMPLE_WEIGHT in records.shapes]


def reading_opened(job: Job, phases: Mapping[str, PhaseRecords], shuffle: bool) -> Job:
    """Make the job's input layers read data that are already open in ``phases``.

    A layer with other settings for its store opens the store itself.
    """
    layers = []
    for layer in job.neuralnet.layer:
        part = next((part for part in phases if layer.in_phase(PHASES[part])), "")
        conf, records = layer.store_conf, phases.get(part, PhaseRecords())
        if conf is not None and layer.name in records.stores:
            source, named = records.sources[layer.name], records.stores[layer.name]
            usual = StoreConf(shape=[*source.shape] if conf.shape else [])
            is_usual = all(getattr(conf, name) == getattr(usual, name) for name in READING if name not in named)
            if is_usual and conf.definition.keys() <= named.keys():
                conf = conf.replace(records=source)
        if conf is not None and not shuffle and layer.in_phase(Phase.kTrain):
            conf = conf.replace(shuffle=False)
        layers.append(layer.replace(store_conf=conf) if conf is not layer.store_conf else layer)
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def describe_arrays(pairs: Mapping[str, Pair]) -> PhaseRecords:
    """Return the shapes of numpy arrays as the description of a data set."""
    shapes = {name: np.shape(x)[1:] for name, (x, _) in pairs.items()}
    return PhaseRecords(
        shapes=shapes, label_shapes={name: None if y is None else np.shape(y)[1:] for name, (_, y) in pairs.items()}
    )


def shapes_of(pairs: Mapping[str, Pair], encoded: Collection[str] = ()) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of each input's arrays; a Dask data frame has None rows."""
    return {
        name: (len(x), *x.shape)
        if isinstance(x, RecordSource)
        else tuple(None if is_dask_collection(size) else size for size in x.shape)
        for name, (x, _) in pairs.items()
        if hasattr(x, "shape") and (name not in encoded or isinstance(x, RecordSource))
    }


def wrong_shape(shapes: Mapping[str, tuple[int | None, ...]], trained: Mapping[str, tuple[int | None, ...]]) -> str:
    """Return an error message if records differ in shape from the training records, else ""."""
    for name, shape in shapes.items():
        if name in trained and shape[1:] != trained[name]:
            hint = ""
            if shape == trained[name]:
                hint = "; for one record, give x[None]"
            elif len(shape) == 2 and len(trained[name]) == 1 and (columns := trained[name][0]):
                hint = f"; give the {counted(columns, 'column')} that it was trained on, in their order"
            elif axes := _swapped_axes(shape[1:], trained[name]):
                hint = f"; the axes are swapped: give x.transpose(0, {', '.join(map(str, axes))})"
            return f"records have shape {shape[1:]}, but the model was trained on {trained[name]}{hint}"
    return ""


def _swapped_axes(shape: Sequence[int | None], trained: Sequence[int | None]) -> list[int]:
    """Return the axes of a batch in the order that gives records of the shape ``trained``; [] if none does."""
    axes = dict(enumerate(shape, 1))
    order: list[int] = []
    for size in trained:
        order += [axis for axis, length in axes.items() if length == size and axis not in order][:1]
    return order if len(order) == len(shape) == len(trained) else []


def least_batch(size: int | None, records: PhaseRecords, default: int | None) -> int | None:
    """Limit a batch size to the number of records, so that each epoch has at least one step."""
    if size is None:
        drawn = (source.batches for source in records.sources.values() if isinstance(source, DrawnRecords))
        size = next((batches.size for batches in drawn if type(batches) is Batches), default)
    return size if size is None else min([size, *map(len, records.sources.values())])


def are_numpy(pairs: Mapping[str, Pair]) -> bool:
    """Whether all records and labels are numpy arrays, which this process computes without a cluster."""
    arrays = [array for pair in pairs.values() for array in pair if array is not None]
    return bool(arrays) and all(isinstance(array, np.ndarray) for array in arrays)
