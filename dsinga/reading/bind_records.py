"""Lets a job read given data instead of stores; converts batches of numpy arrays to records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.data import RecordNames, RecordSource
from dsinga.data.array_kinds import is_table
from dsinga.data.conversion import (
    as_labels,
    as_records,
    find_nonfinite,
    label_dtype,
    nonfinite_error,
    place_of,
    record_dtype,
)
from dsinga.data.sources.arrays import as_numpy
from dsinga.job import Job, LayerConf, LayerType, NetConf, Phase, StoreConf
from dsinga.job.enums import PHASES
from dsinga.layers import RecordInfo, Records
from dsinga.net import NeuralNet, input_layers
from dsinga.net.layer_classes import layer_class
from dsinga.reading.checked_job import ENCODED, names_of_training
from dsinga.reading.given import definition_for, open_given
from dsinga.reading.open_layer import augmented_info, moments_of

Batch = Any  # an array (B, ...), or several by the names of their input layers


def bind_records(
    job: Job,
    data: Any,
    phase: Phase = Phase.kTrain,
    roots: Sequence[str] = (),
    trained: Mapping[str, RecordNames] | None = None,
) -> Job:
    """Return the job with ``data``, such as arrays, in place of its stores.

    Other fields of an input layer, such as its batch size, stay.

    Args:
        job: the job, which is not changed.
        data: a source as in :func:`dsinga.data.open_records`, such as a pair (x, y); a Dataset for ``windows``; or a
            data frame for ``table``. It may be a dict by phase ("train", "val", "test", "deploy"). For several input
            layers, a source is a dict by layer.
        phase: the phase of data that name none.
        roots: folders where a relative path is looked up after the working directory.
        trained: the training records' classes and columns, by input layer, by default of the job's bound records.

    Raises:
        UserError: a source cannot be read, or the net has no input layer for it.
    """
    net = job.neuralnet
    for part, source in sorted(_by_phase(net, data, phase).items(), key=lambda item: item[0] is not Phase.kTrain):
        names = names_of_training(net) | dict(trained or {})
        if part is Phase.kTrain and trained is None:
            names = {}  # these records define the names
        named = {
            layer.name: _open(net, layer, records, names, roots, part)
            for layer, records in _by_layer(net, source, part)
        }
        layers = [bound for layer in net.layer for bound in _bind(layer, named.get(layer.name), part)]
        net = net.replace(layer=layers)
    return job.replace(neuralnet=net)


def _open(
    net: NetConf, layer: LayerConf, source: Any, names: Mapping[str, RecordNames], roots: Sequence[str], phase: Phase
) -> RecordSource:
    """Open the data for an input layer, ordered like the training data."""
    definition, of_layer = _definition(net, layer), names.get(layer.name, RecordNames())
    frame = source[0] if isinstance(source, tuple) else source
    if of_layer.order == ENCODED and is_table(frame) and definition_for(definition, source) is None:
        raise layer.error(
            f"layer {layer.name!r} was trained on a table, but the job has no definition of one, to read a frame; "
            "give the job of the result, as in dsinga.evaluate(result.job, result, data=...)"
        )
    has_labels = (layer.store_conf or StoreConf()).has_label
    records = open_given(
        layer.name, source, of_layer, definition, has_labels=has_labels, roots=roots, phase=phase.name or ""
    )
    if records.has_weights:
        raise layer.error(
            f"layer {layer.name!r} gets records with weights, which only fit and evaluate of a model take"
        )
    return records


def _definition(net: NetConf, layer: LayerConf) -> dict[str, Any]:
    trained = [conf.store_conf for conf in input_layers(net, Phase.kTrain) if conf.name == layer.name]
    stores = [layer.store_conf, *trained]
    return next((store.definition for store in stores if store is not None and store.definition), {})


def _by_phase(net: NetConf, data: Any, phase: Phase) -> Mapping[Phase, Any]:
    if not isinstance(data, dict) or data.keys() <= {layer.name for layer in input_layers(net, phase)}:
        return {phase: data}
    names = [layer.name for layer in input_layers(net, phase)]
    for key in data:
        if key not in PHASES:
            possible = [*PHASES, *names]
            text = f"data are given for {key!r}, which is no phase and no input layer in phase {phase.name}"
            raise UserError(f"{text}{nearest_or_listed(str(key), possible, 'these are')}")
    return {PHASES[key]: source for key, source in data.items()}


def _by_layer(net: NetConf, source: Any, phase: Phase) -> list[tuple[LayerConf, Any]]:
    layers = {layer.name: layer for layer in input_layers(net, phase)}
    if not layers:
        raise net.error(
            f"there are data for phase {phase.name}, but the net has no input layer in it; add {phase.name} to the "
            "include of an input layer, or leave these data out"
        )
    if isinstance(source, dict):
        for name in source:
            if name not in layers:
                hint = nearest_or_listed(str(name), layers, "its input layers are")
                raise net.error(f"there are data for {name!r}, which is no input layer in phase {phase.name}{hint}")
        return [(layers[name], part) for name, part in source.items()]
    if len(layers) > 1:
        names = ", ".join(f"{name!r}: ..." for name in layers)
        raise net.error(f"phase {phase.name} has {len(layers)} input layers; give the data of each: {{{names}}}")
    return [(layer, source) for layer in layers.values()]


def _bind(layer: LayerConf, records: Any, phase: Phase) -> list[LayerConf]:
    if records is None or not layer.in_phase(phase):
        return [layer]
    if layer.type is LayerType.kCharRNN:
        raise layer.error(f"layer {layer.name!r} reads a text, not records; give it the path of a text")
    conf = layer_class(layer).reads(layer) or StoreConf()
    conf = conf.replace(**records.job_settings(), records=records)  # the job keeps these, with its checkpoints
    bound = layer.replace(include=[phase], exclude=[], store_conf=conf)
    if layer.include == [phase]:
        return [bound]
    if layer.include:
        return [bound, layer.replace(include=[included for included in layer.include if included != phase])]
    return [bound, layer.replace(exclude=[*layer.exclude, phase])]


def input_layer(name: str) -> LayerConf:
    """Return an input layer for arrays in place of a store, such as actions or targets."""
    return LayerConf(name=name, type=LayerType.kRecordInput, store_conf=StoreConf(batchsize=[1]))


def with_batchsize(job: Job, batchsize: int) -> Job:
    """Return the job with another batch size in each layer that reads a store."""
    layers = [
        layer.replace(store_conf=layer.store_conf.replace(batchsize=[batchsize]))
        if layer.store_conf is not None and layer_class(layer).is_input
        else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def infos_of_arrays(job: Job, phase: Phase, x: Batch, y: Batch, roots: Sequence[str]) -> dict[str, RecordInfo]:
    """Describe arrays for each input layer, as a store is described, to build a net for them."""
    layers = input_layers(job.neuralnet, phase)
    arrays = by_layer(x, [layer.name for layer in layers], "records")
    labels = by_layer(y, [layer.name for layer in layers], "labels") if y is not None else {}
    infos = {}
    for layer in layers:
        store = layer.store_conf
        label = labels.get(layer.name)
        infos[layer.name] = RecordInfo(
            tuple(np.shape(arrays[layer.name])[1:]),
            max(1, sum(store.batchsize) if store else 1),
            has_labels=label is not None,
            label_shape=() if label is None else tuple(np.shape(label)[1:]),
            label_dtype=np.dtype(np.int64) if label is None else label_dtype(np.asarray(label).dtype),
            **moments_of(store, roots),
        )
        if store is not None and store.augment:
            dtype = record_dtype(np.asarray(arrays[layer.name]).dtype)
            infos[layer.name], _ = augmented_info(layer, infos[layer.name], dtype, job.seed, Phase.kTest)
    return infos


def batch_records(
    net: NeuralNet,
    x: Batch,
    y: Batch,
    infos: Mapping[str, RecordInfo],
    *,
    first: int = 0,
    allows_nonfinite: bool = False,
) -> tuple[dict[str, Records], int]:
    """Convert a batch of numpy arrays to records for the input layers of ``net``; return them with their number.

    Raises UserError if records do not fit the layers' ``infos``, or have NaN or infinity, unless allowed.
    """
    layers = net.inputs
    arrays = by_layer(x, layers, "records")
    labels = by_layer(y, layers, "labels") if y is not None else {}
    records = {name: _converted(arrays[name], labels.get(name)) for name in layers}
    for name in layers:
        fit = infos[name].fit
        if fit is not None and records[name].data.shape[1:] == fit.stored_shape:
            data, label = records[name]
            records[name] = Records(fit.evaluate(data), None if label is None else fit.cut_labels(label))
    rows = len(records[layers[0]].data)
    for name, (data, label) in records.items():
        if len(data) != rows or (label is not None and len(label) != rows):
            what, count = ("records", len(data)) if len(data) != rows else ("labels", len(label))
            raise UserError(f"layer {name!r} gets {count} {what} in a batch of {rows} records")
        got, shape = data.shape[1:], infos[name].shape
        if got != shape and math.prod(got) != math.prod(shape):
            raise UserError(f"layer {name!r} gets records of shape {got}, but the net was made for {shape}")
        if not allows_nonfinite:
            _check_finite("x", data, name, first)
            if label is not None:
                _check_finite("y", label, name, first)
    if not rows:
        raise UserError("the batch is empty; give it at least 1 record")
    return records, rows


def _check_finite(what: str, array: np.ndarray, name: str, first: int) -> None:
    """Raise UserError for NaN or infinity in a batch, except for NaN in labels that are fields."""
    if (bad := find_nonfinite(array, allows_nan=what == "y" and array.ndim > 2)) is not None:
        place = place_of(bad.position)
        raise nonfinite_error(f"numpy array: {what!r} of layer {name!r}", bad.value, first + bad.row, place)


def _converted(x: Any, y: Any) -> Records:
    return Records(as_records(as_numpy(x, "x")), None if y is None else as_labels(as_numpy(y, "y")))


def by_layer(batch: Batch, layers: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the arrays of a batch by input layer."""
    if not isinstance(batch, Mapping):
        if len(layers) == 1 or (what == "labels" and layers):
            return {layers[0]: batch}
        raise UserError(f"the net has the input layers {', '.join(layers)}; give {what} as a dictionary by layer")
    missing = [name for name in layers if name not in batch]
    if missing and what == "records":
        raise UserError(f"the batch lacks records for the input layer {missing[0]!r}")
    return batch


def part_of_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Return the rows ``start`` to ``stop`` - 1 of a batch of arrays."""
    if isinstance(batch, Mapping):
        return {name: array[start:stop] for name, array in batch.items()}
    return batch[start:stop]


def has_no_rows(data: Any) -> bool:
    """Whether data have 0 rows, as an empty array to predict; lengths may be unknown."""
    if isinstance(data, (dict, tuple)):  # an xarray Dataset is a Mapping, too
        parts = [part for part in (data.values() if isinstance(data, dict) else data) if part is not None]
        return bool(parts) and all(map(has_no_rows, parts))
    shape = getattr(data, "shape", ())
    rows = shape[0] if isinstance(shape, tuple) and shape else None  # of a Dask frame it is not a number
    return isinstance(rows, int) and rows == 0


def row_of_zeros(data: Any) -> Any:
    """Return one row of zeros shaped like empty data, to find the shape of a net's output."""
    if isinstance(data, Mapping):
        return {name: row_of_zeros(part) for name, part in data.items()}
    if isinstance(data, tuple):
        return tuple(map(row_of_zeros, data))
    if data is None:
        return None
    array = data if hasattr(data, "shape") else np.asarray(data)
    return np.zeros((1, *array.shape[1:]), getattr(array, "dtype", np.float32))  # a data frame has a dtype by column


def length_of(batch: Batch) -> int:
    """Return how many rows a batch has."""
    return len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch)
