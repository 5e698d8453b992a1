"""Computes a model's predictions and metrics, in this process or on a Dask cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import dsinga.api as api
from dsinga.api.engines import find_runner
from dsinga.base.errors import UserError
from dsinga.base.registry import entries
from dsinga.data import RecordSource
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job
from dsinga.job.definition import RecordsDefinition
from dsinga.net.layer_classes import SAMPLE_WEIGHT, with_member
from dsinga.nn.model.labels import outputs_last
from dsinga.nn.model.records import are_numpy, describe_arrays, explained, labelled, opened
from dsinga.nn.words.keras_arguments import check_names
from dsinga.reading.bind_records import has_no_rows, row_of_zeros
from dsinga.reading.given import Pair, PhaseRecords, definition_for, open_inputs

JobAndData = tuple[Job, dict[str, Any] | None]


def local_net(
    model: Any, pairs: Mapping[str, Pair], has_labels: bool, weights: Any = None, phase: str = "test"
) -> tuple[LocalNet, dict[str, Any], dict[str, Any] | None]:
    """Build the net that computes numpy arrays in this process; return it with records and labels."""
    records, labels = arrays_of(pairs, weights)

    def create() -> LocalNet:
        described = describe_arrays(pairs)
        if has_labels:
            described.assume_labels()
        phases = {"train": described}
        if weights is not None:
            described.shapes[SAMPLE_WEIGHT], phases[phase] = records[SAMPLE_WEIGHT].shape[1:], described
        draws = phase == "train" or not model.trained.is_complete
        job = model.make_job(phases, None, {"seed": model.trained.seed} if draws else {})
        examples = model.label_examples()
        if phase == "train":  # the steps of the optimizer are those of the net
            job = model.trained.with_statistics(job, 0, model._params or {})
        missing = {name: array.reshape(1, -1) for name, array in examples.items() if name not in records}
        return LocalNet(job, {**records, **missing}, {**examples, **(labels or {})} if has_labels else None)

    kind = has_labels, phase, model.trained.before, model.trained.seed
    return model._kept.get(model, kind, create, records, labels or {}), records, labels


def arrays_of(pairs: Mapping[str, Pair], weights: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Convert records, weights and labels to arrays by input layer; labels may be None."""
    records = {name: x for name, (x, _) in pairs.items()}
    if weights is not None:
        records[SAMPLE_WEIGHT] = open_inputs(pairs).add_weights(weights)
    return records, {name: y for name, (_, y) in pairs.items() if y is not None} or None


def required_params(model: Any) -> dict[str, np.ndarray]:
    """Return the params for predictions. Raises UserError if the model has none and its shapes are unknown."""
    params: dict[str, np.ndarray] | None = model._params
    if params is None:
        try:
            params = model.params
        except UserError:
            raise UserError("the model has no params yet; call fit, or set model.params") from None
    return params


def tested_job(model: Any, records: PhaseRecords, batch_size: int | None) -> JobAndData:
    """Return a job that evaluates the model on ``records``, and its data."""
    job = model.make_job({"train": records, "test": records}, batch_size, {})
    return job, {"test": records.sources} if records.sources else None


def job_of_features(model: Any, pairs: Any, batch_size: int | None) -> JobAndData:
    """Return a job that predicts, or computes other layers' outputs, for records, and its data."""
    names, definitions = model.trained.names, model.trained_definitions()
    records = open_inputs(pairs, names, definitions, has_labels=False, reorders=False)
    records.assume_labels()
    return tested_job(model, records, batch_size)


def features_of(
    model: Any, pairs: Mapping[str, Pair], layers: Sequence[str], batch_size: int | None, client: Any
) -> list[Any]:
    """Compute the outputs of named layers for all records."""
    if is_empty := has_no_rows(tuple(records for records, _ in pairs.values())):  # dask arrays, too
        pairs = {name: (_no_records(model, name, records), None) for name, (records, _) in pairs.items()}
    if are_numpy(pairs) and (client is None or is_empty):
        with explained(model, pairs):
            net, records, _ = local_net(model, pairs, has_labels=True)
            return [net.predict(model.known_params(net), records, name, batchsize=batch_size) for name in layers]
    cluster: Any = find_runner(client, waits=True)
    job, data = job_of_features(model, pairs, batch_size)
    return [api.predict(job, required_params(model), name, client=cluster, data=data) for name in layers]


def _no_records(model: Any, name: str, x: Any) -> np.ndarray:
    """Return an empty array (0, ...) of an input's records, so that the empty result has the right shape."""
    is_defined = definition_for(model.trained_definitions().get(name, {}), x) is not None
    empty: np.ndarray = np.zeros((0, *model.record_shapes[name])) if is_defined else row_of_zeros(x)[:0]
    return empty


def drawn_members(model: Any, pairs: Mapping[str, Pair], members: int, batch_size: int | None, client: Any) -> Any:
    """Predict with ``members`` nets drawn by Monte Carlo dropout: each output is (members, n, ...)."""
    job, data = job_of_features(model, pairs, batch_size)
    jobs, params = [with_member(job, member) for member in range(1, members + 1)], required_params(model)
    return [
        np.stack([api.predict(each, params, name, client=client, data=data) for each in jobs])
        for name in model.output_layers()
    ]


def arranged(model: Any, outputs: list[Any], members: int | None) -> Any:
    """Arrange predictions for the user: one array or a list, with an axis of members only if requested."""
    if model.has_channels_last():
        outputs = [outputs_last(output, 0 if members is None else 1) for output in outputs]
    return outputs[0] if len(outputs) == 1 else outputs


def predicted_by_kind(model: Any, x: Any, members: int | None, options: Mapping[str, Any]) -> Any:
    """Let an add-on predict its kind of data, such as a Dataset; NotImplemented for other data."""
    for by in kinds_of_records(model, x):
        if by.predicts(x):
            job = model.make_job(model._fits.arguments.phases if model._fits.arguments else {}, None, {})
            return by.predict(job, required_params(model), model.output_layers(), x, members=members, **options)
    refuse_options(options)
    return NotImplemented


def evaluated_by_kind(
    model: Any, x: Any, batch_size: int | None, client: Any, options: Mapping[str, Any], **labels: Any
) -> Any:
    """Let an add-on evaluate its kind of data with ``options``."""
    for by in kinds_of_records(model, x) if isinstance(x, RecordSource) else ():
        if options.keys() <= by.options.keys():
            by.check_options(**labels)
            job, data = tested_job(model, opened(model, labelled(model, (x, None, None)).pairs), batch_size)
            cluster, params = find_runner(client, waits=True), required_params(model)
            return by.evaluate(job, params, model.output_layers(), client=cluster, data=data, **options)
    refuse_options(options)


def kinds_of_records(model: Any, x: Any) -> list[RecordsDefinition]:
    """Return the definitions of records (windows, tables), by default as in training, to find their functions."""
    if isinstance(x, RecordSource):
        return [*x.job_settings().values()]
    return [by for definition in model.trained_definitions().values() for by in definition.values()]


def given_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options for a kind of data, and return those that are not None."""
    if options:
        known = [*inspect.signature(inspect.unwrap(function)).parameters, *_options_of_all()]
        check_names(function.__name__, known, options)
    return {name: value for name, value in options.items() if value is not None}


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for options that apply to other kinds of data, such as ``leads`` for numpy arrays."""
    for name in options:
        raise UserError(_options_of_all()[name])


def _options_of_all() -> dict[str, str]:
    """Return the options of all kinds of data, each with its error for other data."""
    definitions = [cls for cls in entries("message").values() if issubclass(cls, RecordsDefinition)]
    return {name: fault for cls in definitions for name, fault in cls.options.items()}


def reported(model: Any, metrics: Mapping[str, float]) -> list[str]:
    """Return which metrics given to ``compile`` are among the computed ``metrics``."""
    return [name for name in map(str, getattr(model, "metrics", ())) if name in metrics]
