"""Opens the records of a model's inputs, with their shapes, labels and weights."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import imported
from dsinga.data import RecordNames, RecordSource, open_like, open_records
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.sources.batch_sequences import Batches, DrawnRecords
from dsinga.job import Job, Phase, StoreConf
from dsinga.job.enums import PHASES
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.model.given_data import Pair
from dsinga.nn.model.labels import as_weights

# The settings of an input layer that say how its store is read, besides its path.
READING = ("backend", "separator", "shape", "encoded", "has_label", "data", "label")


@dataclass
class PhaseRecords:
    """The records of each input in one phase.

    Attributes:
        sources: opened sources of records, by input; none for numpy arrays that are only described.
        stores: the fields of the ``store_conf`` of those that a job names: paths, and sources of the user's own.
        definitions: the definition of records by its field of a ``store_conf``, of inputs that are windows or tables.
        shapes: the shape of a record.
        label_shapes: the shape of a row's label, None where there are none.
        names: the names of the classes and columns, in the order of training.
    """

    sources: dict[str, Any] = field(default_factory=dict)
    stores: dict[str, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    label_shapes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    names: dict[str, RecordNames] = field(default_factory=dict)

    def in_order_of(self, trained: Mapping[str, Any]) -> PhaseRecords:
        """Return the records with the windows of Datasets in the order of variables and points of training."""
        sources = dict(self.sources)
        for name in sources.keys() & trained.keys():
            sources[name] = sources[name].in_training_order(trained[name])
        changed = {name: (source, None) for name, source in sources.items() if source is not self.sources[name]}
        if not changed:
            return self
        reopened = open_inputs(changed)
        return replace(
            self,
            sources=sources,
            stores=self.stores | reopened.stores,
            definitions=self.definitions | reopened.definitions,
        )

    def check_order(self, trained: Mapping[str, Any]) -> None:
        """Raise UserError where the windows of Datasets have another order of variables or points than in training."""
        if self.in_order_of(trained) is not self:
            raise UserError(
                "the windows lie otherwise than those of training (the order of variables, levels or axes, or the "
                "direction of one), and so would be what is predicted; give the Dataset, which predict puts in order"
            )

    def bound(self) -> dict[str, Any]:
        """Return the opened sources that the job does not name by a path."""
        return {name: source for name, source in self.sources.items() if name not in self.stores}

    def described(self) -> PhaseRecords:
        """Return the stores and shapes of the records, without the opened records and their weights."""
        shapes = {name: shape for name, shape in self.shapes.items() if name != SAMPLE_WEIGHT}
        return PhaseRecords({}, self.stores, self.definitions, shapes, self.label_shapes, self.names)

    def store_fields(self, name: str) -> dict[str, Any]:
        """Return the fields of the ``store_conf`` of an input that name and define its records."""
        return self.definitions.get(name, {}) | self.stores.get(name, {})

    def assume_labels(self) -> None:
        """Drop the mark of inputs without labels, because a net that only predicts needs no labels."""
        self.label_shapes = {name: shape for name, shape in self.label_shapes.items() if shape is not None}


@dataclass
class JobArguments:
    """The arguments from which a model makes its job: records by phase, batch size, further fields."""

    phases: dict[str, PhaseRecords] = field(default_factory=dict)
    batch_size: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def described(self) -> JobArguments:
        """Return the arguments without the opened records."""
        phases = {phase: records.described() for phase, records in self.phases.items()}
        return JobArguments(phases, self.batch_size, self.fields)

    def steps_of_epoch(self) -> int:
        """Return the number of steps in an epoch of the training records."""
        records = [len(source) for source in self.phases["train"].sources.values()] if self.phases else [1]
        return max(1, -(-min(records, default=1) // (self.batch_size or 1)))


def times_of(
    phases: Mapping[str, PhaseRecords], epochs: int | None, steps: int | None, fields: Mapping[str, Any]
) -> dict[str, int]:
    """Return the fields of the job for the length of training, reports and validation."""
    if steps is not None and epochs is not None:
        raise UserError("give epochs or train_steps, not both")
    if epochs is not None:  # then metrics and validation come at the end of each epoch
        times = {"epochs": epochs, "train_steps": 0, "disp_freq": 0, "validate_freq": 0, "test_freq": 0}
    elif steps is not None:
        every = max(1, steps // 10)
        often = {"validate_freq": every * ("val" in phases), "test_freq": every * ("test" in phases)}
        times = {"train_steps": steps, "epochs": 0, "disp_freq": every, **often}
    else:
        times = {}
    return {name: value for name, value in times.items() if name not in fields}


def open_inputs(
    pairs: Mapping[str, Pair],
    trained: Mapping[str, RecordNames] = MappingProxyType({}),
    definitions: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    has_labels: bool = True,
) -> PhaseRecords:
    """Open the records of each input, with classes and columns in the order of ``trained`` records.

    ``definitions`` are those of the records of training, by which other data frames are read, with labels if
    ``has_labels``. Raises UserError for what cannot be read.
    """
    records = PhaseRecords()
    for name, (x, y) in pairs.items():
        if y is None and (fields := store_fields(x)):
            records.stores[name] = fields
        names = trained.get(name, RecordNames())
        given = x if y is None else (x, y)
        by = next((by for by in definitions.get(name, {}).values() if by.takes(given)), None)
        source = records.sources[name] = by.open_records(name, given, has_labels) if by else open_like(given, names)
        records.names[name] = names.or_else(RecordNames.of(source))
        if isinstance(source, DrawnRecords) and source.has_weights:
            records.sources[name], records.sources[SAMPLE_WEIGHT] = source.split_weights()
            records.shapes[SAMPLE_WEIGHT] = tuple(records.sources[SAMPLE_WEIGHT].shape)
        if definition := source.job_settings():  # a model keeps it, to predict other Datasets and tables
            records.definitions[name] = definition
        records.shapes[name] = tuple(source.shape)
        records.label_shapes[name] = tuple(source.label_shape) if source.has_labels else None
    return records


def label_inputs_for(model: Any, x: Any) -> list[str]:
    """Return the inputs with the labels of outputs; several depend on shapes, those of ``x`` where none are known."""
    with contextlib.suppress(UserError):
        return model.label_inputs()
    if not model.record_shapes and x is not None:
        definitions = model.trained_definitions()
        model.record_shapes = open_inputs(model.unlabelled(x), model.record_names(), definitions, False).shapes
    return model.label_inputs()


def with_tables_open(
    pairs: Mapping[str, Pair], trained: Mapping[str, RecordNames], definitions: Mapping[str, dict[str, Any]]
) -> dict[str, Pair]:
    """Return the pairs with tables, and other sources, opened with their labels in the order of training."""
    tables = {}
    for name, (x, y) in pairs.items():
        is_defined = any(by.takes((x, y)) for by in definitions.get(name, {}).values())
        if is_defined or isinstance(x, RecordSource) and not x.has_weights:
            tables[name] = x, y
    opened = open_inputs(tables, trained, definitions).in_order_of(definitions)
    return {**pairs, **{name: (source, None) for name, source in opened.sources.items()}}


def add_weights(records: PhaseRecords, weights: Any) -> np.ndarray:
    """Add sample weights as records of the input layer "sample_weight", and return the records.

    They are (n,), or (n, steps) and (n, *space) for labels of each step or point. Raises UserError for other shapes.
    """
    if SAMPLE_WEIGHT in records.sources:
        raise UserError("the records have weights, and sample_weight gives others; leave one of the two out")
    array = as_weights(weights)
    lengths = [len(source) for source in records.sources.values()]
    if any(length != len(array) for length in lengths):
        raise UserError(f"sample_weight has {len(array)} numbers for {lengths[0]} records; give one for each")
    labels = [shape for shape in records.label_shapes.values() if shape]
    if array.ndim > 1 and not any(array.shape[1:] in (shape, shape[1:], shape[:1]) for shape in labels):
        by_step = "" if not labels else ", or for each step or point that has labels"
        raise UserError(f"sample_weight has a number for each record, (n,){by_step}, not the shape {array.shape}")
    array = array[:, None] if array.ndim == 1 else array
    records.sources[SAMPLE_WEIGHT] = open_records(array)
    records.shapes[SAMPLE_WEIGHT] = array.shape[1:]
    return array


def weighted_phases(phases: Mapping[str, PhaseRecords]) -> list[Phase]:
    """Return the phases whose records have sample weights."""
    return [PHASES[name] for name, records in phases.items() if SAMPLE_WEIGHT in records.shapes]


def reading_opened(job: Job, phases: Mapping[str, PhaseRecords], shuffle: bool) -> Job:
    """Return the job with input layers that read sources already open in ``phases``, instead of opening them again.

    A layer whose other settings say how its store is read opens it by these. Without ``shuffle`` training reads the
    records in the order given.
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


def store_fields(x: Any) -> dict[str, Any]:
    """Return the fields of a ``store_conf`` that name records: a path, or a registered source; empty for arrays."""
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


def shapes_of(pairs: Mapping[str, Pair], encoded: Collection[str] = ()) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of records that are arrays, with the number of rows; a Dask data frame has no known length.

    Frames of inputs that are ``encoded`` are left out: their records have other shapes.
    """
    return {
        name: (len(x), *x.shape)
        if isinstance(x, RecordSource)
        else tuple(None if is_dask_collection(size) else size for size in x.shape)
        for name, (x, _) in pairs.items()
        if hasattr(x, "shape") and (name not in encoded or isinstance(x, RecordSource))
    }


def wrong_shape(shapes: Mapping[str, tuple[int | None, ...]], trained: Mapping[str, tuple[int | None, ...]]) -> str:
    """Return an error sentence for records of other shapes than the ``trained`` shapes, else "".

    Other shapes are no fault by themselves: a net may take images of any size.
    """
    for name, shape in shapes.items():
        if name in trained and shape[1:] != trained[name]:
            hint = "; for one record, give x[None]" if shape == trained[name] else ""
            return f"records have shape {shape[1:]}, but the model was trained on {trained[name]}{hint}"
    return ""


def least_batch(size: int | None, records: PhaseRecords, default: int | None) -> int | None:
    """Return the batch size, at most the number of records, so that each epoch has at least one step.

    Those of a sequence of batches come before the default.
    """
    if size is None:
        drawn = (source.batches for source in records.sources.values() if isinstance(source, DrawnRecords))
        size = next((batches.size for batches in drawn if type(batches) is Batches), default)
    return size if size is None else min([size, *map(len, records.sources.values())])


def are_numpy(pairs: Mapping[str, Pair]) -> bool:
    """Whether all records and labels are numpy arrays, so that this process computes them without a cluster."""
    arrays = [array for pair in pairs.values() for array in pair if array is not None]
    return bool(arrays) and all(isinstance(array, np.ndarray) for array in arrays)
