"""Predictable: testing and predicting by models described in Python and by those of job files.

Inside, features of images are (B, C, H, W), also where inputs have the channels last: labels and outputs get their axes
in another order where they come in and go out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

import dsinga.api as api
from dsinga.api.engines import find_runner
from dsinga.base.arguments import is_at, is_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data.array_kinds import is_a, is_dask_collection, is_of
from dsinga.job import Job
from dsinga.net.layer_classes import with_member
from dsinga.nn.model.given_data import as_codes, check_whole_numbers, read_iterable
from dsinga.nn.model.model_params import ModelParams
from dsinga.nn.model.records import (
    Pair,
    PhaseRecords,
    are_numpy,
    describe_arrays,
    open_inputs,
    pair_up,
    read_label_paths,
)  # fmt: skip
from dsinga.nn.model.sample_weights import add_weights, without_missing
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.writing.symbol import Symbol, flatten
from dsinga.reading.bind_records import has_no_rows, row_of_zeros

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client
    from xarray import Dataset

    from dsinga.data import FieldWindows

IMAGE_AXES = (4, 5)  # of a batch of images, or of volumes


class Predictable(ModelParams):
    """A net with its params, which can be tested and used."""

    def _pairs(self, x: Any, y: Any) -> dict[str, Pair]:
        if isinstance(x, tuple) and len(x) == 2 and y is None and len(self.input_names()) == 1:
            x, y = x
        label_inputs = self.label_inputs()
        y = read_label_paths(y, len(label_inputs))
        y = self.as_labels(labels_first(y) if self.has_channels_last() else y)
        return self._as_codes(pair_up(x, y, self.input_names(), label_inputs))

    def _as_codes(self, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
        """Return the records of each input with arrays of codes in place of texts and of sequences."""
        encoders = self.text_encoders()
        return {name: (as_codes(x, name, encoders), y) for name, (x, y) in pairs.items()}

    def text_encoders(self) -> dict[str, Any]:
        """Return what makes codes of the texts of each input that takes texts, None for one of codes of any length."""
        return {}

    def has_channels_last(self) -> bool:
        """Whether the records are images, or volumes, with their channels last; so are labels and outputs then."""
        return False

    def as_labels(self, y: Any) -> Any:
        """Return labels in the form that the losses take."""
        return y

    def loss_of_labels(self) -> Any:
        """Return the loss that ``compile`` was given for the first output, None where it was given none."""
        return None

    def _reported(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the names of the metrics of ``compile`` that are among these."""
        return [name for name in map(str, getattr(self, "metrics", ())) if name in metrics]

    def require_loss(self) -> None:
        """Raise UserError for a model that ``compile`` has given no loss."""

    @overload
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        client: Client | None = None,
    ) -> Figures: ...

    @overload
    def evaluate(
        self,
        x: FieldWindows,
        *,
        batch_size: int | None = None,
        client: Client | None = None,
        by: str | Iterable[Any],
        against: Any = (),
    ) -> Dataset: ...

    @overload
    def evaluate(
        self, x: FieldWindows, *, batch_size: int | None = None, client: Client | None = None, against: Any
    ) -> Dataset: ...

    @checked
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        client: Client | None = None,
        by: Any = None,
        against: Any = (),
    ) -> Any:
        """Return the mean loss and metrics over all records by name; ``loss, accuracy = model.evaluate(x, y)`` works.

        With ``sample_weight`` the loss and the shares of right predictions are those of :meth:`fit`; other metrics
        count each record once. numpy arrays are computed in this process unless a client is given. Raises UserError for
        bad input.

        Of windows of a Dataset ``by`` names groups, such as ("variable", "lead", "season"), and ``against`` baselines:
        then the result is a Dataset of errors, see :func:`dsinga.evaluate_fields`.
        """
        check_whole_numbers(batch_size=batch_size)
        if by is not None or against:
            if y is not None or sample_weight is not None:
                raise UserError(
                    "by and against take windows alone, which have their targets, and weights by weights= of "
                    "dsinga.windows; leave y and sample_weight out"
                )
            return self._evaluate_fields(x, batch_size, client, () if by is None else by, against)
        (x, y, sample_weight), _ = read_iterable(x, y, sample_weight)
        y, sample_weight = without_missing(y, sample_weight, self.loss_of_labels())
        pairs = self._pairs(x, y)
        if client is None and are_numpy(pairs):
            with self._explained(pairs):
                labelled = any(y is not None for _, y in pairs.values())
                net, records, labels = self._local(pairs, labelled, sample_weight)
                figures = net.evaluate(self._known_params(net), records, labels, batchsize=batch_size)
            return Figures(figures, self._reported(figures))
        cluster: Any = find_runner(client, waits=True)
        opened = open_inputs(pairs, self.record_names()).in_order_of(self.trained_windows())
        if sample_weight is not None:
            add_weights(opened, sample_weight)
        job, data = self._test_job(opened, batch_size)
        means = api.evaluate(job, self._require_params(), client=cluster, data=data)
        return Figures(means, self._reported(means))

    def _evaluate_fields(self, x: Any, batch_size: int | None, client: Any, by: Any, against: Any) -> Any:
        """Return the errors of the output as a prediction of the targets of windows, by group."""
        if not is_of(x, "dsinga", "FieldWindows"):
            raise UserError("by and against are for windows of a Dataset, as of dsinga.windows")
        layers = self.output_layers()
        if len(layers) != 1:
            raise UserError(f"errors by group are those of a model with one output, not {len(layers)}")
        cluster: Any = find_runner(client, waits=True)
        opened = open_inputs(self._pairs(x, None), self.record_names()).in_order_of(self.trained_windows())
        job, data = self._test_job(opened, batch_size)
        return lookup("hook", "evaluate_fields")(
            job, self._require_params(), layers[0], client=cluster, by=by, against=against, data=data
        )

    def _test_job(self, records: PhaseRecords, batch_size: int | None) -> tuple[Job, dict[str, Any] | None]:
        """Return the job that tests ``records``, and its data."""
        job = self.make_job({"train": records, "test": records}, batch_size, {})
        return job, {"test": records.sources} if records.sources else None

    @checked
    def predict(
        self,
        x: Any = None,
        *,
        batch_size: int | None = None,
        client: Client | None = None,
        leads: int | None = None,
        members: int | None = None,
    ) -> Any:
        """Return the outputs for all records, (n, ...) numpy; a list for several outputs.

        A numpy array is computed in this process unless a client is given. For an xarray Dataset or DataArray, or the
        path of one, the output of a model that was trained from windows is a lazy Dataset of their targets, which Dask
        computes, for so many ``leads`` as are given: see :func:`dsinga.predict_lazily`. With ``members`` the result has
        a first dimension "member", for nets that are drawn from those which the model's dropout trains, (members, n,
        ...). Raises UserError for bad input.
        """
        check_whole_numbers(batch_size=batch_size, members=members)
        (x, _, _), _ = read_iterable(x)
        is_dataset = is_a(x, "xarray", "Dataset", "DataArray") or isinstance(x, (str, os.PathLike))
        if is_dataset and self.is_of_windows():
            return self._predict_dataset(x, leads, members)
        if leads is not None:
            raise UserError("leads are those of a Dataset, for a model that was trained from windows of one")
        pairs = self._as_codes(pair_up(x, None, self.input_names(), self.input_names()[:1]))
        if not self.record_shapes and are_numpy(pairs):  # a model whose inputs say no shape, before its first fit
            self.record_shapes = describe_arrays(pairs).shapes
        if members is not None:
            return self._predict_members(pairs, members, batch_size, client)
        outputs = self.features(x, self.output_layers(), batch_size=batch_size, client=client)
        return outputs_last(outputs) if self.has_channels_last() else outputs

    def _predict_members(self, pairs: Any, members: int, batch_size: int | None, client: Client | None) -> Any:
        """Return the outputs of each member of an ensemble by dropout, (members, n, ...); a list for several."""
        job, data = self._job_of_features(pairs, batch_size)
        jobs = [with_member(job, member) for member in range(1, members + 1)]
        format_of = outputs_last if self.has_channels_last() else np.asarray
        outputs = [
            np.stack(
                [
                    format_of(api.predict(of_member, self._require_params(), name, client=client, data=data))
                    for of_member in jobs
                ]
            )
            for name in self.output_layers()
        ]
        return outputs[0] if len(outputs) == 1 else outputs

    def __call__(self, inputs: Any, *further: Any, training: bool | None = None) -> Any:
        """Return what the model makes of features, as a layer does, or of arrays, as :meth:`predict` does.

        Models that have a layer share its params. Raises UserError for ``training=True``, which fit is for.
        """
        if training:
            raise UserError("model(x, training=True) is not there: fit trains, and model(x) is what predict returns")
        given = [inputs, *further] if further else inputs
        features = flatten(given.values() if isinstance(given, dict) else [given])
        if any(isinstance(feature, Symbol) for feature in features):
            return self.on_features(features)
        return with_tensor_methods(self.predict(given))

    def on_features(self, features: Sequence[Any]) -> Any:
        """Return the symbols of the outputs of the model on these symbols. Raises UserError for a model of a job."""
        raise UserError(
            f"{self!r} is no layer, because its layers are in a job; model.features(x, layer) computes them"
        )

    def trained_windows(self) -> dict[str, Any]:
        """Return the settings of the windows of a Dataset of training, by input; none for other records."""
        return self._arguments.phases["train"].windows if self._arguments and "train" in self._arguments.phases else {}

    def is_of_windows(self) -> bool:
        """Return whether the records of training were windows of a Dataset."""
        return self._arguments is not None and any(records.windows for records in self._arguments.phases.values())

    def _predict_dataset(self, dataset: Any, leads: int | None, members: int | None) -> Any:
        """Return the output for a Dataset as a lazy Dataset."""
        job = self.make_job(self._arguments.phases if self._arguments else {}, None, {})
        layers = self.output_layers()
        if len(layers) != 1:
            raise UserError(f"predict takes a Dataset for a model with one output, not {len(layers)}")
        predict_lazily = lookup("hook", "predict_lazily")
        return predict_lazily(job, self._require_params(), layers[0], dataset, leads=leads, members=members)

    @checked
    def features(
        self, x: Any, layers: str | Sequence[str], *, batch_size: int | None = None, client: Client | None = None
    ) -> Any:
        """Return the feature of a layer for all records, (n, ...) numpy; a list for several layers."""
        check_whole_numbers(batch_size=batch_size)
        names = [layers] if isinstance(layers, str) else list(layers)
        pairs = self._as_codes(pair_up(x, None, self.input_names(), self.label_inputs()))
        if is_empty := has_no_rows(tuple(records for records, _ in pairs.values())):  # also dask arrays
            pairs = {name: (row_of_zeros(records)[:0], None) for name, (records, _) in pairs.items()}
        if are_numpy(pairs) and (client is None or is_empty):
            with self._explained(pairs):
                net, records, _ = self._local(pairs, labelled=True)
                features = [net.predict(self._known_params(net), records, name, batchsize=batch_size) for name in names]
        else:
            cluster: Any = find_runner(client, waits=True)
            job, data = self._job_of_features(pairs, batch_size)
            features = [api.predict(job, self._require_params(), name, client=cluster, data=data) for name in names]
        return features[0] if len(names) == 1 else features

    def _job_of_features(self, pairs: Any, batch_size: int | None) -> tuple[Job, dict[str, Any] | None]:
        """Return the job that computes features of records, and its data."""
        opened = open_inputs(pairs, self.record_names())
        opened.check_order(self.trained_windows())
        opened.assume_labels()
        return self._test_job(opened, batch_size)


def labels_first(y: Any) -> Any:
    """Return labels that are images (n, H, W, C), or volumes, with the channels first; others as they are.

    ``y`` may be a list of those of several outputs, or a dict. Dask arrays stay lazy.
    """
    if isinstance(y, dict):
        return {name: labels_first(labels) for name, labels in y.items()}
    if isinstance(y, list) and y and all(hasattr(labels, "ndim") for labels in y):
        return [labels_first(labels) for labels in y]
    if getattr(y, "ndim", 0) not in IMAGE_AXES:
        return y
    return np.moveaxis(y if is_dask_collection(y) else np.asarray(y), -1, 1)


def outputs_last(outputs: Any) -> Any:
    """Return outputs, an array or a list, with the channels of images and volumes last."""
    if isinstance(outputs, list):
        return [outputs_last(output) for output in outputs]
    return np.moveaxis(outputs, 1, -1) if outputs.ndim in IMAGE_AXES else outputs


class Figures(dict[str, float]):
    """The loss and the metrics of an evaluation by name; ``loss, accuracy = figures`` takes their values.

    It is a dict: loops go over names, as ``dict(figures)`` and ``in`` do. An assignment to several variables, for which
    names are of no use, and whole numbers as keys, as ``figures[1]``, get the values in the order of Keras: the loss,
    then the metrics that ``compile`` was given, without these all that there are.

    Args:
        figures: the figures by name.
        metrics: the names of the metrics of ``compile`` that are among them.
    """

    def __init__(self, figures: Mapping[str, float], metrics: Sequence[str] = ()):
        super().__init__(figures)
        self._metrics = metrics
        others = metrics or [name for name in figures if name != "loss"]
        self._values = [figures[name] for name in ("loss", *others) if name in figures]

    def __iter__(self) -> Iterator[Any]:
        is_unpacked = is_at(sys._getframe(1), "UNPACK_SEQUENCE", "UNPACK_EX")
        return iter(self._values) if is_unpacked else super().__iter__()

    def __missing__(self, name: Any) -> float:
        if is_whole(name, 0) and name < len(self._values):
            return self._values[name]
        raise KeyError(name)

    def __float__(self) -> float:
        """Return the loss, as Keras does where no metrics are compiled. Raises UserError where there are some."""
        if self._metrics:
            raise UserError(f"evaluate returns several figures: {', '.join(self)}; take one, as figures['loss']")
        return self["loss"]

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)


class Predictions(np.ndarray[Any, Any]):
    """An array of predictions that has methods of tensors, too, for programs that are written for these."""

    def numpy(self) -> np.ndarray:
        """Return the plain array."""
        return self.view(np.ndarray)

    def detach(self) -> Self:
        """Return the array, which has no gradient."""
        return self

    cpu = detach


def with_tensor_methods(predictions: Any) -> Any:
    """Return predictions, an array or a list, with numpy's arrays as :class:`Predictions`."""
    if isinstance(predictions, list):
        return [with_tensor_methods(array) for array in predictions]
    return predictions.view(Predictions) if type(predictions) is np.ndarray else predictions
