"""Evaluates models and predicts with them, on numpy arrays, dask arrays and Datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import dsinga.api as api
from dsinga.api.engines import find_runner
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data.array_kinds import is_dask_collection, is_table
from dsinga.nn.model import predicting
from dsinga.nn.model.given_data import EvaluateOptions, PredictOptions, check_whole_numbers
from dsinga.nn.model.model_params import ModelParams
from dsinga.nn.model.records import are_numpy, describe_arrays, explained, labelled, opened, unlabelled
from dsinga.nn.model.results import EvaluationResult, with_tensor_methods
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.writing.symbol import Symbol, flatten
from dsinga.reading.pairs import read_iterable

if TYPE_CHECKING:  # Dask is imported only when needed
    from distributed import Client
    from xarray import Dataset

    from dsinga.data import FieldWindows


class Predictable(ModelParams):
    """Base class of models, with the methods ``evaluate``, ``predict`` and ``features``."""

    served: Any = None  # what an estimator, and so a server, computes before and after the net

    def trained_definitions(self) -> dict[str, dict[str, Any]]:
        """Return how training read each input (windows, table), to read new data in the same way."""
        return {**self.trained.definitions}

    def text_encoders(self) -> dict[str, Any]:
        """Return the tokenizer of each input that accepts texts; None for codes of any length."""
        return {}

    def has_channels_last(self) -> bool:
        """Whether an input has images with channels last; then image labels and outputs have, too."""
        return False

    def require_loss(self) -> None:
        """Raise UserError if a model to be evaluated has no loss from ``compile``."""

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

        The result is a tuple in Keras's order, with names: ``model.evaluate(x, y)["loss"]``.

        Args:
            x: records, as for :meth:`fit`.
            y: labels, unless ``x`` has them.
            sample_weight: as for :meth:`fit`; only the loss and accuracies use it.
            batch_size: records computed at a time, by default as many as bounded memory allows.
            client: Dask client, to evaluate on its workers. Without one, this process computes numpy arrays.
            return_dict: True to return a plain dict.
            options: for windows of a Dataset: ``by``, names of groups such as ("variable", "lead", "season"), and
                ``against``, baselines. The result is then a Dataset of errors (:func:`dsinga.evaluate_fields`).

        Raises:
            UserError: shapes, losses and data do not fit.

        Examples:
            >>> import numpy as np
            >>> from dsinga import nn
            >>> x = np.random.default_rng(0).normal(size=(100, 4))
            >>> y = (x[:, 0] > 0).astype(int)
            >>> model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])
            >>> model.compile("adam", "sparse_categorical_crossentropy")
            >>> history = model.fit(x, y, epochs=50, progress=False)
            >>> loss, accuracy = model.evaluate(x, y)
            >>> bool(accuracy > 0.9)
            True
        """
        check_whole_numbers(batch_size=batch_size)
        if given := predicting.given_options(Predictable.evaluate, options):
            return predicting.evaluated_by_kind(self, x, batch_size, client, given, y=y, sample_weight=sample_weight)
        self.require_loss()
        pairs, sample_weight = labelled(self, read_iterable((x, y, sample_weight))[0])
        if client is None and are_numpy(pairs):
            with explained(self, pairs):
                has_labels = any(y is not None for _, y in pairs.values())
                net, records, labels = predicting.local_net(self, pairs, has_labels, sample_weight)
                figures: Mapping[str, float] = net.evaluate(
                    self.known_params(net), records, labels, batchsize=batch_size
                )
        else:
            cluster: Any = find_runner(client, waits=True)
            job, data = predicting.tested_job(self, opened(self, pairs, sample_weight), batch_size)
            figures = api.evaluate(job, predicting.required_params(self), client=cluster, data=data)
        return dict(figures) if return_dict else EvaluationResult(figures, predicting.reported(self, figures))

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
            x: records, as for :meth:`fit`, without labels. Use :meth:`predict_lazily` if outputs do not fit in memory.
                A model trained on windows accepts an xarray Dataset, a DataArray or a path, and returns a lazy Dataset.
            batch_size: records computed at a time, by default as many as bounded memory allows.
            client: Dask client, to predict on its workers. Without one, this process computes numpy arrays.
            members: how many nets to draw by dropout; the result has a first dimension "member", (members, n, ...).
            options: for a Dataset: ``leads``, how many times predictions are fed back (:func:`dsinga.predict_lazily`).

        Raises:
            UserError: bad input, or a model without params.

        Examples:
            >>> import numpy as np
            >>> from dsinga import nn
            >>> x = np.random.default_rng(0).normal(size=(100, 4))
            >>> y = (x[:, 0] > 0).astype(int)
            >>> model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])
            >>> model.compile("adam", "sparse_categorical_crossentropy")
            >>> history = model.fit(x, y, epochs=50, progress=False)
            >>> model.predict(x).shape
            (100, 2)
        """
        check_whole_numbers(batch_size=batch_size, members=members)
        given = predicting.given_options(Predictable.predict, options)
        if (predicted := predicting.predicted_by_kind(self, x, members, given)) is not NotImplemented:
            return predicted
        (x, _, _), _ = read_iterable((x, None, None))
        pairs = unlabelled(self, x)
        if not self.record_shapes and are_numpy(pairs):  # inputs without a shape, before the first fit
            self.record_shapes = describe_arrays(pairs).shapes
        if members is None:
            outputs = predicting.features_of(self, pairs, self.output_layers(), batch_size, client)
        else:
            outputs = predicting.drawn_members(self, pairs, members, batch_size, client)
        return predicting.arranged(self, outputs, members)

    @checked
    def predict_lazily(self, x: Any, *, members: int | None = None, **options: Unpack[PredictOptions]) -> Any:
        """Return the outputs for a dask array of records as a dask array, chunk by chunk.

        Several outputs are a list. For a Dataset, a DataArray or a path the result is a lazy Dataset. ``leads`` and
        ``members`` work as in :meth:`predict`. Raises UserError for other records.

        Examples:
            >>> import dask.array as da
            >>> import numpy as np
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Input(4), nn.Dense(2)])
            >>> model.compile("adam", "mse")
            >>> history = model.fit(np.ones((32, 4)), np.ones((32, 2)), progress=False)
            >>> lazy = model.predict_lazily(da.ones((1000, 4), chunks=(100, 4)))
            >>> lazy[:3].compute().shape
            (3, 2)
        """
        given = predicting.given_options(Predictable.predict_lazily, options)
        if (predicted := predicting.predicted_by_kind(self, x, members, given)) is not NotImplemented:
            return predicted
        if not is_dask_collection(x) or is_table(x):
            raise UserError(
                f"predict_lazily takes a dask array, as da.from_zarr(path) gives one, not a {type(x).__name__}; use "
                "predict, whose outputs are in memory, or fit an estimator, such as Classifier(net=model), which is "
                "lazy for Dask data frames"
            )
        job, _ = predicting.job_of_features(self, unlabelled(self, x), None)
        lazily, params = lookup("hook", "predict_lazily"), predicting.required_params(self)
        return predicting.arranged(
            self, [lazily(job, params, name, x, members=members) for name in self.output_layers()], members
        )

    def __call__(self, inputs: Any, *further: Any, training: bool | None = None) -> Any:
        """Apply the model as a layer to symbolic tensors and return one, or predict if called on arrays.

        Models that contain the same layer share its params. Raises UserError for ``training=True``: use fit.
        """
        if training:
            raise UserError("model(x, training=True) is not there: fit trains, and model(x) is what predict returns")
        records = [inputs, *further] if further else inputs
        features = flatten(records.values() if isinstance(records, dict) else [records])
        if any(isinstance(feature, Symbol) for feature in features):
            return self.on_features(features)
        return with_tensor_methods(self.predict(records))

    def on_features(self, features: Sequence[Any]) -> Any:
        """Apply the model as a layer to symbolic tensors."""
        raise UserError(
            f"{self!r} is no layer, because its layers are in a job; model.features(x, layer) computes them"
        )

    @checked
    def features(
        self, x: Any, layers: str | Sequence[str], *, batch_size: int | None = None, client: Client | None = None
    ) -> Any:
        """Return the output of a named layer for all records, (n, ...) numpy; a list for several layers.

        Examples:
            >>> import numpy as np
            >>> from dsinga import nn
            >>> x = np.random.default_rng(0).normal(size=(100, 4))
            >>> y = (x[:, 0] > 0).astype(int)
            >>> model = nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])
            >>> model.compile("adam", "sparse_categorical_crossentropy")
            >>> history = model.fit(x, y, epochs=50, progress=False)
            >>> model.features(x, "dense").shape
            (100, 8)
        """
        check_whole_numbers(batch_size=batch_size)
        names = [layers] if isinstance(layers, str) else list(layers)
        features = predicting.features_of(self, unlabelled(self, x), names, batch_size, client)
        return features[0] if len(names) == 1 else features
