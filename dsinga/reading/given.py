"""Opens users' data with columns, classes and channels in the order of the training data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import imported
from dsinga.data import RecordNames, RecordSource, open_like, open_records
from dsinga.data.sources.batch_sequences import DrawnRecords
from dsinga.job.definition import RecordsDefinition
from dsinga.net.layer_classes import SAMPLE_WEIGHT

Pair = tuple[Any, Any]  # records and labels of an input
Definition = Mapping[str, RecordsDefinition]  # of the records of an input, by its field of a ``store_conf``
UNDEFINED: Definition = MappingProxyType({})
UNNAMED = RecordNames()


def definition_for(definition: Definition, given: Any) -> RecordsDefinition | None:
    """Return how records are made of an input's data; None if they are records already."""
    return next((by for by in definition.values() if by.takes(given)), None)


def open_given(
    layer: str, given: Any, names: RecordNames = UNNAMED, definition: Definition = UNDEFINED, *,
    has_labels: bool = True, reorders: bool = True, roots: Sequence[str] = (), phase: str = "",
) -> RecordSource:  # fmt: skip
    """Open a user's data for an input layer, records or a pair (x, y), as records like training's.

    Args:
        layer: the name of the input layer.
        given: an input of the ``definition``, such as a data frame, or a source as in :func:`dsinga.data.open_records`.
        names: the training records' classes and columns.
        definition: the training records' definition: windows of a Dataset, or a table.
        has_labels: whether the definition reads labels.
        reorders: whether to reorder windows of another layout than training's, or refuse them.
        roots: folders where a relative path is looked up after the working directory.
        phase: the name of the phase, for messages.

    Raises:
        UserError: the data cannot be read, or are unlike the training records.
    """
    if (by := definition_for(definition, given)) is not None:
        defined: RecordSource = by.open_records(layer, given, has_labels)
        return defined
    records = open_like(given, names, roots, phase)
    ordered = records.in_training_order(definition)
    if ordered is not records and not reorders:
        raise UserError(
            "the windows lie otherwise than those of training (the order of variables, levels or axes, or the "
            "direction of one), and so would be what is predicted; give the Dataset, which predict puts in order"
        )
    return ordered


@dataclass
class PhaseRecords:
    """The records that a user gave ``fit`` or ``predict`` for each input, opened and described.

    Attributes:
        sources: opened sources of records, by input; empty for numpy arrays that are only described.
        stores: the ``store_conf`` fields of records that a job names: paths, and users' own sources.
        definitions: the definition of windows or tables, by its ``store_conf`` field.
    """

    sources: dict[str, Any] = field(default_factory=dict)
    stores: dict[str, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    label_shapes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    names: dict[str, RecordNames] = field(default_factory=dict)

    def bound(self) -> dict[str, Any]:
        """Return the opened sources, to bind them to a job; paths are named in the job."""
        return {name: source for name, source in self.sources.items() if name not in self.stores}

    def described(self) -> PhaseRecords:
        """Return a copy without records and weights, which keeps names and shapes."""
        shapes = {name: shape for name, shape in self.shapes.items() if name != SAMPLE_WEIGHT}
        return PhaseRecords({}, self.stores, self.definitions, shapes, self.label_shapes, self.names)

    def store_fields(self, name: str) -> dict[str, Any]:
        """Return the ``store_conf`` fields that make a job read an input's records."""
        return self.definitions.get(name, {}) | self.stores.get(name, {})

    def assume_labels(self) -> None:
        """Forget that inputs have no labels, for a net that only predicts."""
        self.label_shapes = {name: shape for name, shape in self.label_shapes.items() if shape is not None}

    def add_weights(self, weights: Any) -> np.ndarray:
        """Add sample weights as another input, "sample_weight"; return them as (n, ...) float32.

        They are (n,), or (n, steps) and (n, *space) for labels of each step or point.
        """
        if SAMPLE_WEIGHT in self.sources:
            raise UserError("the records have weights, and sample_weight gives others; leave one of the two out")
        array = as_weights(weights)
        lengths = [len(source) for source in self.sources.values()]
        if any(length != len(array) for length in lengths):
            raise UserError(f"sample_weight has {len(array)} numbers for {lengths[0]} records; give one for each")
        labels = [shape for shape in self.label_shapes.values() if shape]
        if array.ndim > 1 and not any(array.shape[1:] in (shape, shape[1:], shape[:1]) for shape in labels):
            by_step = "" if not labels else ", or for each step or point that has labels"
            raise UserError(f"sample_weight has a number for each record, (n,){by_step}, not the shape {array.shape}")
        array = array[:, None] if array.ndim == 1 else array
        self.sources[SAMPLE_WEIGHT] = open_records(array)
        self.shapes[SAMPLE_WEIGHT] = array.shape[1:]
        return array


@dataclass
class JobArguments:
    """The arguments of a model's job: records by phase, batch size, other fields."""

    phases: dict[str, PhaseRecords] = field(default_factory=dict)
    batch_size: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def described(self) -> JobArguments:
        """Return a copy without the opened records."""
        phases = {phase: records.described() for phase, records in self.phases.items()}
        return JobArguments(phases, self.batch_size, self.fields)

    def steps_of_epoch(self) -> int:
        """Return how many training steps an epoch has."""
        records = [len(source) for source in self.phases["train"].sources.values()] if self.phases else [1]
        return max(1, -(-min(records, default=1) // (self.batch_size or 1)))


def open_inputs(
    pairs: Mapping[str, Pair],
    names: Mapping[str, RecordNames] = MappingProxyType({}),
    definitions: Mapping[str, Definition] = MappingProxyType({}),
    *,
    has_labels: bool = True,
    reorders: bool = True,
) -> PhaseRecords:
    """Open the records of each input, and split off sample weights.

    ``names`` and ``definitions`` describe the training records, by input; other arguments are :func:`open_given`'s.
    """
    records = PhaseRecords()
    for name, (x, y) in pairs.items():
        known, definition = names.get(name, UNNAMED), definitions.get(name, UNDEFINED)
        given = x if y is None else (x, y)
        source = open_given(name, given, known, definition, has_labels=has_labels, reorders=reorders)
        if y is None and (fields := store_fields(source if isinstance(x, RecordSource) else x)):
            records.stores[name] = fields
        records.sources[name] = source
        records.names[name] = known.or_else(RecordNames.of(source))
        if isinstance(source, DrawnRecords) and source.has_weights:
            records.sources[name], records.sources[SAMPLE_WEIGHT] = source.split_weights()
            records.shapes[SAMPLE_WEIGHT] = tuple(records.sources[SAMPLE_WEIGHT].shape)
        if settings := source.job_settings():  # a model keeps it, to predict other Datasets and tables
            records.definitions[name] = settings
        records.shapes[name] = tuple(source.shape)
        records.label_shapes[name] = tuple(source.label_shape) if source.has_labels else None
    return records


def store_fields(x: Any) -> dict[str, Any]:
    """Return the ``store_conf`` fields that name records: path or registered source; {} for arrays."""
    if isinstance(x, (str, os.PathLike)):
        return {"path": os.fspath(x)}
    if isinstance(x, RecordSource):
        return x.named_fields()
    name = next((name for name, cls in imported("source").items() if cls is type(x)), None)
    settings = {x.settings.field: x.settings} if name and x.settings is not None else {}
    return {"backend": name, "path": x.path, **settings} if name else {}


def as_weights(sample_weight: Any) -> np.ndarray:
    """Return sample weights as (n, ...) float32. Raises UserError for NaN, infinity and numbers below 0."""
    try:
        array = np.asarray(sample_weight, np.float32)
    except (TypeError, ValueError):
        array = None
    if array is None or not array.ndim:
        raise UserError(f"sample_weight has a number for each record, (n,), not {value_text(sample_weight)}")
    if array.size == len(array):
        array = array.reshape(-1)
    wrong = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise UserError(
            f"sample_weight of record {wrong[0][0]} is {array[tuple(wrong[0])]:g}; give a number of at least 0, and 0 "
            "to leave a record out"
        )
    return array
