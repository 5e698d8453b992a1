"""Batches of numpy arrays as the records of input layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.data import read_mean
from dsinga.data.conversion import as_labels, as_records, find_nonfinite, label_dtype, nonfinite_error, place_of
from dsinga.errors import UserError
from dsinga.job import Job, Phase
from dsinga.layers import RecordInfo, Records
from dsinga.net import NeuralNet, input_layers

Batch = Any  # an array (B, ...), or several by the names of their input layers


def infos_of_arrays(job: Job, phase: Phase, x: Batch, y: Batch, roots: Sequence[str]) -> dict[str, RecordInfo]:
    """Return the description of arrays for each input layer of a phase, as if they were the records of a store."""
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
            mean=read_mean(store.mean_file, roots) if store and store.mean_file else None,
            std=read_mean(store.std_file, roots) if store and store.std_file else None,
        )
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
    """Return the records of a batch for the input layers of ``net``, and their number.

    ``first`` is the number of the first record, for messages. Raises UserError where records do not fit ``infos``, the
    description of each layer's records, or where records or labels have NaN or infinity, unless these are allowed.
    """
    layers = net.inputs
    arrays = by_layer(x, layers, "records")
    labels = by_layer(y, layers, "labels") if y is not None else {}
    records = {name: _converted(arrays[name], labels.get(name)) for name in layers}
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
    """Raise UserError for NaN or infinity, as sources of records do; ``what`` is "x" or "y"."""
    if (bad := find_nonfinite(array)) is not None:
        place = place_of(bad.position)
        raise nonfinite_error(f"numpy array: {what!r} of layer {name!r}", bad.value, first + bad.row, place)


def _converted(x: Any, y: Any) -> Records:
    """Return records and labels in the dtypes that those of all sources have."""
    return Records(as_records(np.asarray(x)), None if y is None else as_labels(np.asarray(y)))


def by_layer(batch: Batch, layers: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the arrays of a batch by input layer. Raises UserError where one is missing."""
    if not isinstance(batch, Mapping):
        if len(layers) == 1 or (what == "labels" and layers):
            return {layers[0]: batch}
        raise UserError(f"the net has the input layers {', '.join(layers)}; give {what} as a dictionary by layer")
    missing = [name for name in layers if name not in batch]
    if missing and what == "records":
        raise UserError(f"the batch lacks records for the input layer {missing[0]!r}")
    return batch


def part_of_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows ``start`` to ``stop`` - 1 of each array of a batch."""
    if isinstance(batch, Mapping):
        return {name: array[start:stop] for name, array in batch.items()}
    return batch[start:stop]


def length_of(batch: Batch) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch)
