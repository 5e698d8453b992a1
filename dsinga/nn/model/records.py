"""Opens the records of a model's inputs, with their shapes and labels."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import zarr

from dsinga.base.arguments import values_by_name
from dsinga.base.errors import UserError
from dsinga.base.registry import imported
from dsinga.data import RecordNames, RecordSource, open_like
from dsinga.data.array_kinds import is_dask_collection, is_of
from dsinga.data.sources.batch_sequences import Batches, DrawnRecords
from dsinga.data.stores.store_format import SMALL_BYTES
from dsinga.job import Job, Phase, StoreConf
from dsinga.job.enums import PHASES
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.words.losses import loss_kind
from dsinga.nn.writing.symbol import Symbol

Pair = tuple[Any, Any]  # records and labels


class WeighedPairs(NamedTuple):
    """The records and labels of each input in one phase, and the weights of the records, None without."""

    pairs: dict[str, Pair]
    weights: Any


# The settings of an input layer that say how its store is read, besides its path.
READING = ("backend", "separator", "shape", "encoded", "has_label", "data", "label", "windows")
COLUMN_LOSSES = "sparse_categorical_crossentropy categorical_crossentropy hinge binary_crossentropy focal".split()


@dataclass
class PhaseRecords:
    """The records of each input in one phase.

    Attributes:
        sources: opened sources of records, by input; none for numpy arrays that are only described.
        stores: the fields of the ``store_conf`` of those that a job names: paths, and sources of the user's own.
        windows: the settings of windows of a Dataset, as a ``store_conf`` has them, of inputs that are windows.
        shapes: the shape of a record.
        label_shapes: the shape of a row's label, None where there are none.
        names: the names of the classes and columns, in the order of training.
    """

    sources: dict[str, Any] = field(default_factory=dict)
    stores: dict[str, dict[str, Any]] = field(default_factory=dict)
    windows: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    label_shapes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    names: dict[str, RecordNames] = field(default_factory=dict)

    def in_order_of(self, trained: Mapping[str, Any]) -> PhaseRecords:
        """Return the records with windows of Datasets in the order of those of training, whose settings are given."""
        sources = dict(self.sources)
        for name in sources.keys() & trained.keys():
            sources[name] = sources[name].in_training_order({"windows": trained[name]})
        changed = {name: (source, None) for name, source in sources.items() if source is not self.sources[name]}
        if not changed:
            return self
        others = open_inputs(changed)
        return replace(self, sources=sources, stores=self.stores | others.stores, windows=self.windows | others.windows)

    def check_order(self, trained: Mapping[str, Any]) -> None:
        """Raise UserError where windows of Datasets lie otherwise than those of training, whose settings are given."""
        if self.in_order_of(trained) is not self:
            raise UserError(
                "the windows lie otherwise than those of training (the order of variables, levels or axes, or the "
                "direction of one), and so would be what is predicted; give the Dataset, which predict puts in order"
            )

    def bound(self) -> dict[str, Any]:
        """Return the sources that the job does not name."""
        return {name: source for name, source in self.sources.items() if name not in self.stores}

    def described(self) -> PhaseRecords:
        """Return the stores and shapes without the opened records, and without weights, which belong to these."""
        shapes = {name: shape for name, shape in self.shapes.items() if name != SAMPLE_WEIGHT}
        return PhaseRecords({}, self.stores, self.windows, shapes, self.label_shapes, self.names)

    def store_fields(self, name: str) -> dict[str, Any]:
        """Return the fields of the ``store_conf`` of an input: those that name its records, and define its windows."""
        windows = {"windows": self.windows[name]} if name in self.windows else {}
        return windows | self.stores.get(name, {})

    def assume_labels(self) -> None:
        """Describe inputs without labels as in training, where losses have labels: a net that predicts needs none."""
        self.label_shapes = {name: shape for name, shape in self.label_shapes.items() if shape is not None}


@dataclass
class JobArguments:
    """The arguments of a model's job: the records of "train", "val" and "test", the batch size, fields of the job."""

    phases: dict[str, PhaseRecords] = field(default_factory=dict)
    batch_size: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def described(self) -> JobArguments:
        """Return the arguments without opened records."""
        phases = {phase: records.described() for phase, records in self.phases.items()}
        return JobArguments(phases, self.batch_size, self.fields)


def open_inputs(pairs: Mapping[str, Pair], trained: Mapping[str, RecordNames] = MappingProxyType({})) -> PhaseRecords:
    """Return the opened records of each input, with classes and columns in the order of the ``trained`` ones.

    Raises UserError for what cannot be read.
    """
    records = PhaseRecords()
    for name, (x, y) in pairs.items():
        if y is None and (fields := store_fields(x)):
            records.stores[name] = fields
        names = trained.get(name, RecordNames())
        source = records.sources[name] = open_like(x if y is None else (x, y), names)
        records.names[name] = names.or_else(RecordNames.of(source))
        if isinstance(source, DrawnRecords) and source.has_weights:
            records.sources[name], records.sources[SAMPLE_WEIGHT] = source.split_weights()
            records.shapes[SAMPLE_WEIGHT] = tuple(records.sources[SAMPLE_WEIGHT].shape)
        if windows := source.job_settings().get("windows"):  # a model keeps these, to predict other Datasets
            records.windows[name] = windows
        records.shapes[name] = tuple(source.shape)
        records.label_shapes[name] = tuple(source.label_shape) if source.has_labels else None
    return records


def with_open_stores(job: Job, phases: Mapping[str, PhaseRecords]) -> Job:
    """Return the job whose input layers read the stores that it names from ``phases``, where these are open already.

    A layer whose other settings say how its store is read opens it by these.
    """
    layers = []
    for layer in job.neuralnet.layer:
        part = next((part for part in phases if layer.in_phase(PHASES[part])), "")
        conf, records = layer.store_conf, phases.get(part, PhaseRecords())
        if conf is not None and layer.name in records.stores:
            source, named = records.sources[layer.name], records.stores[layer.name]
            usual = StoreConf(shape=[*source.shape] if conf.shape else [])
            if all(getattr(conf, name) == getattr(usual, name) for name in READING if name not in named):
                layer = layer.replace(store_conf=conf.replace(records=source))
        layers.append(layer)
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def in_order_given(job: Job) -> Job:
    """Return the job whose training reads the records in the order given."""
    layers = [
        layer.replace(store_conf=layer.store_conf.replace(shuffle=False))
        if layer.store_conf is not None and layer.in_phase(Phase.kTrain)
        else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def store_fields(x: Any) -> dict[str, Any]:
    """Return the fields of a ``store_conf`` that name records: a path, or a registered source; none for arrays."""
    if isinstance(x, (str, os.PathLike)):
        return {"path": os.fspath(x)}
    if isinstance(x, RecordSource):
        return x.named_fields()
    name = next((name for name, cls in imported("source").items() if cls is type(x)), None)
    settings = {x.settings.field: x.settings} if name and x.settings is not None else {}
    return {"backend": name, "path": x.path, **settings} if name else {}


def describe_arrays(pairs: Mapping[str, Pair]) -> PhaseRecords:
    """Return the shapes of numpy arrays (n, ...)."""
    shapes = {name: np.shape(x)[1:] for name, (x, _) in pairs.items()}
    return PhaseRecords(
        shapes=shapes, label_shapes={name: None if y is None else np.shape(y)[1:] for name, (_, y) in pairs.items()}
    )


def shapes_of(pairs: Mapping[str, Pair]) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of all rows of records that are arrays; the length of a Dask data frame is not known."""
    return {
        name: (len(x), *x.shape)
        if isinstance(x, RecordSource)
        else tuple(None if is_dask_collection(size) else size for size in x.shape)
        for name, (x, _) in pairs.items()
        if hasattr(x, "shape")
    }


@contextmanager
def naming_shapes(
    shapes: Mapping[str, tuple[int | None, ...]], trained: Mapping[str, tuple[int | None, ...]]
) -> Iterator[None]:
    """Raise a UserError about records of other shapes than those ``trained`` on in place of one that they lead to.

    Other shapes are no fault by themselves: a net may take images of any size.
    """
    try:
        yield
    except UserError as error:
        for name, shape in shapes.items():
            if name in trained and shape[1:] != trained[name]:
                hint = "; for one record, give x[None]" if shape == trained[name] else ""
                raise UserError(
                    f"records have shape {shape[1:]}, but the model was trained on {trained[name]}{hint}"
                ) from error
        raise


def least_batch(size: int | None, records: PhaseRecords, default: int | None) -> int | None:
    """Return the rows of a batch, at most the number of records, so that each epoch has a step of its own.

    Those of a sequence of batches come before the default.
    """
    if size is None:
        drawn = (source.batches for source in records.sources.values() if isinstance(source, DrawnRecords))
        size = next((batches.size for batches in drawn if type(batches) is Batches), default)
    return size if size is None else min([size, *map(len, records.sources.values())])


def pair_up(x: Any, y: Any, inputs: Sequence[str], label_inputs: Sequence[str]) -> dict[str, Pair]:
    """Return the records of each input layer with their labels, None for records without, or with labels of their own.

    Args:
        x: a source as :func:`dsinga.data.open_records` takes it; for several inputs a list, or a dict by name.
        y: labels, None where ``x`` has them or there are none; for several outputs a list in their order.
        inputs: the names of the inputs.
        label_inputs: the names of the input layers that have the labels of each output; one that is no input has the
            labels as its records, too.

    Raises:
        UserError: there are more or fewer sources than inputs, or labels than outputs.
    """
    if isinstance(x, tuple) and y is None and len(inputs) == 1:
        if len(x) != 2:
            weights = "; give sample_weight= for the weights of records" if len(x) == 3 else ""
            raise UserError(f"data are a pair (x, y), not {len(x)} things{weights}")
        x, y = x
    if x is None and y is not None:
        raise UserError("labels y are given without records; give x, too")
    records = {} if x is None else by_name("x", x, inputs)
    outputs = label_inputs or inputs[:1]
    needs = f"y needs labels for each of {len(outputs)} outputs, in a list, not"
    labels = {} if y is None else in_order(y, outputs, needs)
    pairs = {name: (source, labels.pop(name, None)) for name, source in records.items()}
    for name, label in labels.items():
        rows = np.asarray(label)
        pairs[name] = (rows.reshape(len(rows), -1).astype(np.float32), rows)
    return pairs


def read_label_paths(y: Any, outputs: int) -> Any:
    """Return labels that are a zarr array, or its path, as a numpy array, or a column where it has over 128 MiB.

    With several outputs ``y`` may be a list of such. Labels of other kinds are returned as they are. Raises
    UserError for a path that cannot be read.
    """
    if outputs > 1 and isinstance(y, list):
        return [read_label_paths(labels, 1) for labels in y]
    if not isinstance(y, (str, os.PathLike, zarr.Array)) or getattr(y, "dtype", np.dtype("i8")).kind not in "biuf":
        return y
    from dsinga.data import open_labels  # which arrays do not need

    column = open_labels(y)
    is_small = column.length * math.prod(column.shape) * column.dtype.itemsize <= SMALL_BYTES
    return column.load(0, column.length) if is_small else column


def are_numpy(pairs: Mapping[str, Pair]) -> bool:
    """Whether all records and labels are numpy arrays, which this process computes without a cluster."""
    arrays = [array for pair in pairs.values() for array in pair if array is not None]
    return bool(arrays) and all(isinstance(array, np.ndarray) for array in arrays)


def labels_for_loss(loss: Any, y: Any) -> Any:
    """Return labels as a loss takes them: (n, 1) as (n,), one-hot rows (n, K) as classes (n,), shares as float32.

    Anything else is returned as it is. ``loss`` is its name, or a layer. Raises UserError for rows that are not shares
    of classes, or that are one-hot where classes are expected, for classes that are floats, and for answers other than
    0 to 1.
    """
    if isinstance(y, np.ndarray) and y.size and y.dtype.kind in "biuf":
        _check_labels(loss, y)
    if not (isinstance(y, np.ndarray) and y.ndim == 2):
        return y
    if y.shape[1] == 1 and loss in COLUMN_LOSSES:
        return y[:, 0]
    if loss == "categorical_crossentropy":
        is_one_hot = np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all()
        return y.argmax(axis=1) if is_one_hot else y.astype(np.float32)
    return y


def _check_labels(loss: Any, y: np.ndarray) -> None:
    """Raise UserError for labels of numbers that a loss does not take."""
    kind = loss_kind(loss) if not isinstance(loss, Symbol) else ""
    if kind in ("SigmoidCrossEntropyLoss", "FocalLoss") and (y.min() < 0 or y.max() > 1):
        name = loss if isinstance(loss, str) else f"nn.{kind}"
        raise UserError(
            f"{name} takes labels from 0 to 1, but y has {y.min():g} to {y.max():g}; for several classes "
            'use "sparse_categorical_crossentropy"'
        )
    if loss == "sparse_categorical_crossentropy" and y.dtype.kind == "f":
        _check_classes(loss, y)
    are_shares = kind == "KLDivergenceLoss" or loss == "categorical_crossentropy" or y.dtype.kind == "f"
    if y.ndim == 2 and y.shape[1] > 1 and kind in ("SoftmaxLoss", "KLDivergenceLoss") and are_shares:
        wrong = np.flatnonzero((y < 0).any(axis=1) | (np.abs(y.sum(axis=1, dtype=np.float64) - 1) > 1e-3))
        if wrong.size:
            raise UserError(
                f"{loss if isinstance(loss, str) else f'nn.{kind}'} takes the share of each class, numbers of at least "
                f"0 that add up to 1 in a row, but row {wrong[0]} of y has the sum {y[wrong[0]].sum():g}"
            )


def _check_classes(loss: str, y: np.ndarray) -> None:
    """Raise UserError for float labels where classes are expected, with what they are meant for."""
    if y.ndim == 2 and y.shape[1] > 1 and (y.sum(axis=1) == 1).all() and np.isin(y, (0, 1)).all():
        raise UserError(f'{loss} takes classes, but y is one-hot; use "categorical_crossentropy"')
    if np.array_equal(y, np.round(y)):
        raise UserError(f"{loss} takes classes, but y has the dtype {y.dtype}; give y.astype(int)")
    raise UserError(
        f"{loss} takes classes, but y has numbers such as {y.flat[0]:g}; for shares of classes use "
        '"categorical_crossentropy", for numbers to predict "mse"'
    )


def by_name(what: str, given: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what is given for each of ``names``, a dict of them, or a list in their order, or a single one."""
    if is_of(given, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise UserError(
            f"{what} is a {type(given).__name__}; give one of its datasets, as in x[{next(iter(given), '')!r}]"
        )
    if isinstance(given, dict):  # an xarray Dataset is a mapping, too
        return dict(zip(names, values_by_name(what, given, names, "input"), strict=True))
    return in_order(given, names, f"{what} needs {len(names)} sources, one for each of {', '.join(names)}, not")


def in_order(given: Any, names: Sequence[str], needs: str) -> dict[str, Any]:
    """Return what is given for each of ``names``, a list in their order, or a single one; ``needs`` begins an error."""
    if len(names) == 1:
        return {names[0]: given}
    count = len(given) if isinstance(given, (list, tuple)) else 1
    if not isinstance(given, (list, tuple)) or count != len(names):
        raise UserError(f"{needs} {count}")
    return dict(zip(names, given, strict=True))
