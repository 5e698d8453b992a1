"""Tests models and predicts with them. Inside, features of images are (B, C, H, W), wherever the channels come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

import dsinga.api as api
from dsinga.api.engines import find_runner
from dsinga.base.errors import OtherRecords, UserError
from dsinga.base.registry import lookup
from dsinga.data import RecordSource
from dsinga.data.array_kinds import is_dask_collection, is_table
from dsinga.job import Job
from dsinga.job.definition import RecordsDefinition
from dsinga.net.layer_classes import with_member
from dsinga.nn.model.given_data import (
    Data,
    EvaluateOptions,
    PredictOptions,
    WeighedPairs,
    as_codes,
    as_pair,
    check_whole_numbers,
    pair_up,
    read_iterable,
    read_label_paths,
)
from dsinga.nn.model.kept_nets import KeptNets
from dsinga.nn.model.kinds_of_records import given_options, kinds_of_records, refuse_options
from dsinga.nn.model.labels import labels_first, outputs_last, without_missing
from dsinga.nn.model.model_params import ModelParams
from dsinga.nn.model.records import (
    are_numpy,
    describe_arrays,
    label_inputs_for,
    shapes_of,
    wrong_shape,
)
from dsinga.nn.model.results import EvaluationResult, with_tensor_methods
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.writing.symbol import Symbol, flatten
from dsinga.reading.bind_records import has_no_rows, row_of_zeros
from dsinga.reading.given import Pair, PhaseRecords, open_inputs, taking

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client
    from xarray import Dataset

    from dsinga.data import FieldWindows


class Predictable(ModelParams):
    """A net with its params that can be evaluated and can predict."""

    served: Any = None  # what an estimator does before and after its net, which a server then does, too
    _label_inputs_for = label_inputs_for

    def _pairs(self, x: Any, y: Any) -> dict[str, Pair]:
        x, y = as_pair(x, y, self.input_names())
        y = read_label_paths(y, len(label_inputs := self._label_inputs_for(x)))
        y = self.as_labels(labels_first(y) if self.has_channels_last() else y)
        return self._as_codes(pair_up(x, y, self.input_names(), label_inputs))

    @contextmanager
    def _explained(
        self, pairs: Mapping[str, Pair], held_out: Mapping[str, Pair] = MappingProxyType({})
    ) -> Iterator[None]:
        """Replace an error caused by records of another shape than in training by one that names both shapes.

        Records ``held_out`` for validation are compared with the others; frames whose columns are encoded are not.
        """
        of_records = (name for name, (x, _) in pairs.items() if isinstance(x, RecordSource) and x.job_settings())
        encoded = {*self.trained_definitions(), *of_records}
        before_fault, shapes = dict(self.record_shapes), shapes_of(pairs, encoded)
        trained = {} if self._params is None else before_fault
        try:
            yield
        except UserError as error:
            self.record_shapes, self._kept = before_fault, KeptNets()
            if isinstance(error, OtherRecords):
                raise
            rows = {name: shape[1:] for name, shape in shapes.items()}
            if fault := wrong_shape(shapes, trained) or wrong_shape(shapes_of(held_out, encoded), rows):
                raise UserError(fault) from error
            raise

    def trained_definitions(self) -> dict[str, dict[str, Any]]:
        """Return, by input, the definition of the records of training: windows of a Dataset, or a table."""
        return {**self.trained.definitions}

    def _weighed_pairs(self, data: Data) -> WeighedPairs:
        """Return the records and labels of each input, and sample weights, which are 0 for missing labels."""
        x, y, weights = data
        if x is None and y is None and weights is not None:
            raise UserError("sample_weight needs x, the records that it weighs")
        y, weights = without_missing(y, weights, self.loss_of_labels())
        return WeighedPairs(self._pairs(x, y), weights)

    def _as_codes(self, pairs: Mapping[str, Pair]) -> dict[str, Pair]:
        """Return the records of each input with texts and sequences converted to arrays of codes."""
        encoders, definitions = self.text_encoders(), self.trained_definitions()
        for name, (x, _) in pairs.items():
            for definition in definitions.get(name, {}).values():
                definition.check_source(x)
        return {name: (as_codes(x, name, encoders), y) for name, (x, y) in pairs.items()}

    def text_encoders(self) -> dict[str, Any]:
        """Return, by input, the encoder that turns texts into codes; None for an input of codes of any length."""
        return {}

    def has_channels_last(self) -> bool:
        """Whether records are images or volumes with their channels last; then labels and outputs have, too."""
        return False

    def as_labels(self, y: Any) -> Any:
        """Return labels in the form that the losses take."""
        return y

    def loss_of_labels(self) -> Any:
        """Return the loss of the first output as given to ``compile``, or None."""
        return None

    def _reported(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the names of the metrics of ``compile`` that ``metrics`` contains."""
        return [name for name in map(str, getattr(self, "metrics", ())) if name in metrics]

    def require_loss(self) -> None:
        """Raise UserError for a model that has no loss from ``compile``."""

    @overload
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        client: Client | None = None,
        return_dict: Literal[False] = False,
    ) -> EvaluationResult: ...

    @overload
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        client: Client | None = None,
        return_dict: Literal[True],
    ) -> dict[str, float]: ...

    @overload
    def evaluate(
        self,
        x: FieldWindows,
        *,
        batch_size: int | None = None,
        client: Client | None = None,
        by: str | Iterable[Any] = ...,
        against: Any = ...,
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
        return_dict: bool = False,
        **options: Unpack[EvaluateOptions],
    ) -> Any:
        """Return the mean loss and metrics over all records: ``loss, accuracy = model.evaluate(x, y)``.

        The numbers are a tuple in the order of Keras, and have names, as in ``model.evaluate(x, y)["loss"]``. Of numpy
        arrays they are computed in this process unless a client is given.

        Args:
            x: records, as for :meth:`fit`.
            y: labels, where ``x`` has none.
            sample_weight: as for :meth:`fit`: for the loss and the shares of right predictions; other metrics count
                each record once.
            batch_size: how many records are computed at a time; by default as many as bounded memory takes.
            client: a Dask client, on whose workers they are computed.
            return_dict: whether the result is a plain dict of all numbers by name.
            options: of windows of a Dataset ``by``, names of groups such as ("variable", "lead", "season"), and
                ``against``, baselines; then the result is a Dataset of errors, see :func:`dsinga.evaluate_fields`.

        Raises:
            UserError: shapes, losses and data do not fit.
        """
        check_whole_numbers(batch_size=batch_size)
        if given := given_options(Predictable.evaluate, options):
            return self._evaluate_by_kind(x, batch_size, client, given, y=y, sample_weight=sample_weight)
        pairs, sample_weight = self._weighed_pairs(read_iterable((x, y, sample_weight))[0])
        if client is None and are_numpy(pairs):
            with self._explained(pairs):
                labelled = any(y is not None for _, y in pairs.values())
                net, records, labels = self._local(pairs, labelled, sample_weight)
                figures: Mapping[str, float] = net.evaluate(
                    self._known_params(net), records, labels, batchsize=batch_size
                )
        else:
            cluster: Any = find_runner(client, waits=True)
            job, data = self._test_job(self._opened(pairs, sample_weight), batch_size)
            figures = api.evaluate(job, self._require_params(), client=cluster, data=data)
        return dict(figures) if return_dict else EvaluationResult(figures, self._reported(figures))

    def _opened(
        self, pairs: Mapping[str, Pair], weights: Any = None, train: PhaseRecords | None = None
    ) -> PhaseRecords:
        """Open the records of each input, with columns and classes in the order of training, and add their weights.

        ``train`` are the records of training where these are opened, too; they count for a model without earlier ones.
        """
        train = train or PhaseRecords()
        definitions = self.trained_definitions() or train.definitions
        opened = open_inputs(pairs, self.record_names() or train.names, definitions)
        if weights is not None:
            opened.add_weights(weights)
        return opened

    def _evaluate_by_kind(self, x: Any, batch_size: int | None, client: Any, options: Any, **labels: Any) -> Any:
        """Return the evaluation of records by options of their kind."""
        for by in kinds_of_records(self, x) if isinstance(x, RecordSource) else ():
            if options.keys() <= by.options.keys():
                by.check_options(**labels)
                job, data = self._test_job(self._opened(self._pairs(x, None)), batch_size)
                cluster: Any = find_runner(client, waits=True)
                params = self._require_params()
                return by.evaluate(job, params, self.output_layers(), client=cluster, data=data, **options)
        refuse_options(options)

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
        members: int | None = None,
        **options: Unpack[PredictOptions],
    ) -> Any:
        """Return the outputs for all records, (n, ...) numpy; a list for several outputs.

        Args:
            x: records, as for :meth:`fit`, without labels. The outputs of a dask array, or of a path, are in memory,
                too; :meth:`predict_lazily` returns a dask array, for more than memory holds. A model that was trained
                from windows takes an xarray Dataset or DataArray, or the path of one, and returns a lazy Dataset.
            batch_size: how many records are computed at a time; by default as many as bounded memory takes.
            client: a Dask client, on whose workers records are computed; numpy arrays without one in this process.
            members: how many nets are drawn from those which the model's dropout trains; the result then has a first
                dimension "member", (members, n, ...).
            options: of a Dataset ``leads``, how many times predictions are fed back; see :func:`dsinga.predict_lazily`.

        Raises:
            UserError: for bad input, and for a model without params.
        """
        check_whole_numbers(batch_size=batch_size, members=members)
        given = given_options(Predictable.predict, options)
        if (by := self._predicted_by(x)) is not None:
            return self._predict_by_kind(by, x, members=members, **given)
        refuse_options(given)
        (x, _, _), _ = read_iterable((x, None, None))
        pairs = self._unlabelled(x)
        if not self.record_shapes and are_numpy(pairs):  # a model whose inputs say no shape, before its first fit
            self.record_shapes = describe_arrays(pairs).shapes
        if members is None:
            outputs = self._features(pairs, self.output_layers(), batch_size, client)
        else:
            job, data = self._job_of_features(pairs, batch_size)
            jobs = [with_member(job, member) for member in range(1, members + 1)]
            drawn = [
                [api.predict(job, self._require_params(), name, client=client, data=data) for job in jobs]
                for name in self.output_layers()
            ]
            outputs = [np.stack(of_members) for of_members in drawn]
        return self._arranged(outputs, members)

    @checked
    def predict_lazily(self, x: Any, *, members: int | None = None, **options: Unpack[PredictOptions]) -> Any:
        """Return the outputs for a dask array of records as a dask array, computed chunk by chunk.

        So neither records nor outputs need to fit into memory; a list for several outputs. For a Dataset or DataArray,
        or the path of one, it is a lazy Dataset. ``leads`` and ``members`` are those of :meth:`predict`, and
        :func:`dsinga.predict_lazily` does the same for a job. Raises UserError for other records.
        """
        given = given_options(Predictable.predict_lazily, options)
        if (by := self._predicted_by(x)) is not None:
            return self._predict_by_kind(by, x, members=members, **given)
        refuse_options(given)
        if not is_dask_collection(x) or is_table(x):
            raise UserError(
                f"predict_lazily takes a dask array, as da.from_zarr(path) gives one, not a {type(x).__name__}; use "
                "predict, whose outputs are in memory, or fit an estimator, such as Classifier(net=model), which is "
                "lazy for Dask data frames"
            )
        job, _ = self._job_of_features(self._unlabelled(x), None)
        lazily, params = lookup("hook", "predict_lazily"), self._require_params()
        return self._arranged([lazily(job, params, name, x, members=members) for name in self.output_layers()], members)

    def _predicted_by(self, x: Any) -> RecordsDefinition | None:
        """Return the kind of records that predicts ``x`` by itself, None where records are predicted like any."""
        return next((by for by in kinds_of_records(self, x) if by.predicts(x)), None)

    def _predict_by_kind(self, by: RecordsDefinition, x: Any, **options: Any) -> Any:
        """Return the prediction of a kind of records by the job of the last fit."""
        job = self.make_job(self._fits.arguments.phases if self._fits.arguments else {}, None, {})
        return by.predict(job, self._require_params(), self.output_layers(), x, **options)

    def _arranged(self, outputs: list[Any], members: int | None) -> Any:
        """Return one output, or a list of several; (n, ...), or (members, n, ...) if ``members`` is given."""
        if self.has_channels_last():
            outputs = [outputs_last(output, 0 if members is None else 1) for output in outputs]
        return outputs[0] if len(outputs) == 1 else outputs

    def __call__(self, inputs: Any, *further: Any, training: bool | None = None) -> Any:
        """Return a symbol when called on symbols, as a layer does, or predictions when called on arrays.

        Models that have a layer share its params. Raises UserError for ``training=True``, which fit is for.
        """
        if training:
            raise UserError("model(x, training=True) is not there: fit trains, and model(x) is what predict returns")
        records = [inputs, *further] if further else inputs
        features = flatten(records.values() if isinstance(records, dict) else [records])
        if any(isinstance(feature, Symbol) for feature in features):
            return self.on_features(features)
        return with_tensor_methods(self.predict(records))

    def on_features(self, features: Sequence[Any]) -> Any:
        """Return the symbols of the outputs of the model on these symbols. Raises UserError for a model of a job."""
        raise UserError(
            f"{self!r} is no layer, because its layers are in a job; model.features(x, layer) computes them"
        )

    @checked
    def features(
        self, x: Any, layers: str | Sequence[str], *, batch_size: int | None = None, client: Client | None = None
    ) -> Any:
        """Return the output of a named layer for all records, (n, ...) numpy; a list for several layers."""
        check_whole_numbers(batch_size=batch_size)
        names = [layers] if isinstance(layers, str) else list(layers)
        features = self._features(self._unlabelled(x), names, batch_size, client)
        return features[0] if len(names) == 1 else features

    def _unlabelled(self, x: Any) -> dict[str, Pair]:
        """Return the records of each input in the form of training, without labels."""
        names = self.input_names()
        pairs = self._as_codes(pair_up(*as_pair(x, None, names), names, names[:1]))
        return {name: (records, None) for name, (records, _) in pairs.items()}

    def _features(
        self, pairs: Mapping[str, Pair], layers: Sequence[str], batch_size: int | None, client: Client | None
    ) -> list[Any]:
        """Return the output of each named layer; numpy arrays are computed in this process unless a client is given."""
        if is_empty := has_no_rows(tuple(records for records, _ in pairs.values())):  # also dask arrays
            pairs = {name: (self._no_records(name, records), None) for name, (records, _) in pairs.items()}
        if are_numpy(pairs) and (client is None or is_empty):
            with self._explained(pairs):
                net, records, _ = self._local(pairs, labelled=True)
                return [net.predict(self._known_params(net), records, name, batchsize=batch_size) for name in layers]
        cluster: Any = find_runner(client, waits=True)
        job, data = self._job_of_features(pairs, batch_size)
        return [api.predict(job, self._require_params(), name, client=cluster, data=data) for name in layers]

    def _no_records(self, name: str, x: Any) -> np.ndarray:
        """Return no records, (0, ...), of the shape that those of ``x``, which has no rows, would have."""
        is_defined = taking(self.trained_definitions().get(name, {}), x) is not None
        empty: np.ndarray = np.zeros((0, *self.record_shapes[name])) if is_defined else row_of_zeros(x)[:0]
        return empty

    def _job_of_features(self, pairs: Any, batch_size: int | None) -> tuple[Job, dict[str, Any] | None]:
        """Return a job that computes the outputs of layers for records, and its data."""
        names, definitions = self.record_names(), self.trained_definitions()
        opened = open_inputs(pairs, names, definitions, has_labels=False, reorders=False)
        opened.assume_labels()
        return self._test_job(opened, batch_size)
