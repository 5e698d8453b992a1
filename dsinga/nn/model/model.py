"""Model, a net described in Python with Keras's functional interface or by subclassing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsinga.base.arguments import value_text, values_by_name, with_types
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.job import AlgConf, ClusterConf, Job, LayerConf, LayerType, Phase, UpdaterConf
from dsinga.net.layer_classes import SAMPLE_WEIGHT
from dsinga.nn.model.labels import labels_for_loss
from dsinga.nn.model.records import weighted_phases
from dsinga.nn.model.shared_params import SharedParams
from dsinga.nn.model.trainable import Trainable
from dsinga.nn.words.inputs import INPUT, Input, number_inputs
from dsinga.nn.words.keras_arguments import MODEL_ATTRIBUTES, STEP_METHODS, checked, checked_class
from dsinga.nn.words.losses import is_loss, loss_kind
from dsinga.nn.words.metrics import check_metric_names, metrics_by_output
from dsinga.nn.words.optimizers import updater_conf
from dsinga.nn.words.regularisers import penalised
from dsinga.nn.writing.net_conf import (
    Objective,
    layer_names,
    layers_of,
    layers_of_input,
    layers_with_losses,
    objective_of,
    write_net,
)
from dsinga.nn.writing.symbol import LayerBuilder, Symbol, ancestors, call_again, flatten
from dsinga.nn.writing.variables import Variable
from dsinga.reading.checked_job import CheckedJob, JobChange, changed
from dsinga.reading.given import PhaseRecords


@checked_class
class Model(Trainable):
    """A trainable net from ``inputs`` to ``outputs``, the symbolic tensors that calls of layers return.

    A subclass may define ``call`` instead of passing outputs. It makes its layers in the constructor, and ``call(self,
    x)``, which runs once, returns the outputs for the symbolic input ``x``.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input(16)
        >>> model = nn.Model(x, nn.Dense(16)(x) + x)
        >>> model.output.shape
        (None, 16)
    """

    def __init__(self, inputs: Any = None, outputs: Any = None, name: str = "model"):
        super().__init__(name)
        is_traced = outputs is None and callable(getattr(type(self), "call", None))
        if not is_traced and (inputs is None or outputs is None):
            raise UserError(
                "nn.Model takes inputs and outputs, as in nn.Model(x, nn.Dense(10)(x)); or a subclass defines "
                "call(self, x), which returns the outputs"
            )
        self.inputs = _symbols("inputs", Input() if inputs is None else inputs)
        number_inputs([symbol.builder for symbol in self.inputs])
        self.outputs = [] if is_traced else _connected(self, _symbols("outputs", outputs))
        self.optimizer: UpdaterConf = updater_conf("sgd")
        self.objective = Objective()
        self.metrics: Sequence[Any] = ()
        self.job_changes: list[JobChange] = []  # changes by add-ons, in order
        self._shared = SharedParams()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in sorted(vars(cls).keys() & STEP_METHODS):
            raise UserError(f"{cls.__name__} defines {name}, which fit does not call; {MODEL_ATTRIBUTES['train_step']}")

    @checked
    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        algorithm: Any = None,
        cluster: ClusterConf | None = None,
    ) -> None:
        """Set the optimizer, losses and metrics for training, and how many workers share it.

        Args:
            optimizer: name such as "adam", or ``nn.Adam(learning_rate=...)``.
            loss: name such as "sparse_categorical_crossentropy", a loss layer such as ``nn.SoftmaxLoss(topk=5)``, or
                the output of a loss layer. For several outputs: a list, or a dict by the name of the output's layer.
                Restricted Boltzmann machines need none.
            metrics: names such as "roc_auc", "top_5_accuracy", "macro_f1" or "r2" (all: docs/reference/metrics.md),
                functions of (labels, predictions) of all records, or nn.FieldError(...). For several outputs: a dict,
                or a list of lists. Losses always report their own metrics.
            loss_weights: factor for each loss.
            algorithm: by default back-propagation, or contrastive divergence for restricted Boltzmann machines.
            cluster: topology, such as ``nn.Cluster(workers=2)``.

        Raises:
            UserError: an unknown name, or losses that do not fit the outputs.

        Examples:
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Dense(10)])
            >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["top_5_accuracy"])
        """
        self.refuse_while_training("compile")
        outputs = self._outputs()
        objective = objective_of(loss, loss_weights, outputs)
        kinds = {loss_kind(loss) for loss in objective.losses if not isinstance(loss, Symbol)}
        ends = [*outputs, *(loss for loss in objective.losses if isinstance(loss, Symbol))]
        kinds |= {symbol.builder.kind for symbol in ancestors(ends)}
        objective.metrics = metrics_by_output(metrics, [output.builder.name or "" for output in outputs])
        self.metrics = flatten([objective.metrics])
        check_metric_names(self.metrics, kinds)
        self.optimizer, self.objective = updater_conf(optimizer), objective
        self.trained = self.trained.with_optimizer()
        objective.algorithm = AlgConf(**algorithm) if isinstance(algorithm, dict) else algorithm
        objective.cluster = cluster

    @property
    def _params(self) -> dict[str, np.ndarray] | None:
        """The params by name; layers that other models share have their newest values."""
        if self._fits.running is not None:
            self._fits.running.refresh()
        return self._shared.newest(self.trained.params)

    @_params.setter
    def _params(self, params: dict[str, np.ndarray] | None) -> None:
        if not self._shared.owners:  # the owners of the params are not known yet
            with contextlib.suppress(UserError):
                self._written()
        self.trained = self.trained.with_values(params)
        self._shared = self._shared.handed_out(params or {})

    def _builders(self) -> list[LayerBuilder]:
        builders = layers_with_losses(self._outputs(), self.objective)
        for builder in builders:
            if builder.wrapped is not None and builder.wrapped not in builders:
                builders.append(builder.wrapped)
        return builders

    def on_features(self, features: Sequence[Any]) -> Any:
        """Call the model as a layer on other tensors."""
        inputs, outputs = self._inputs(), self._outputs()
        if self.job_changes:
            raise UserError(
                f"{self!r} has layers of an add-on, which a call on features would leave out; call it before"
            )
        if len(features) != len(inputs):
            raise UserError(f"{self!r} takes {len(inputs)} features, not {len(features)}")
        for feature in features:
            if not isinstance(feature, Symbol):
                raise UserError(f"{self!r} is called on features or on arrays, not on both: {value_text(feature)}")
        called = call_again(inputs, outputs, features)
        for symbol in called:
            symbol.model = self
        return called[0] if len(called) == 1 else called

    @property
    def input(self) -> Any:
        """The symbolic tensor of the input, or a list for several inputs."""
        return self._inputs()[0] if len(self._inputs()) == 1 else self._inputs()

    @property
    def output(self) -> Any:
        """The symbolic tensor of the output, or a list for several outputs."""
        return self._outputs()[0] if len(self._outputs()) == 1 else self._outputs()

    @property
    def layers(self) -> list[LayerBuilder]:
        """The layers from inputs to outputs, each once and after the layers that it reads."""
        return _registered(self, layers_of(self._outputs()))

    def weights_of(self, layer: LayerBuilder) -> list[Variable]:
        """Return the params of a layer in order."""
        variables = {variable.name: variable for variable in self.weights}
        names = next((names for builder, names in self._shared.owners if builder in (layer, layer.wrapped)), [])
        return [variables[name] for name in names]

    @checked
    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """Return a layer by its name in the job, or its index in ``layers``. Raises UserError for an unknown one.

        Examples:
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Input(4), nn.Dense(2, name="scores")])
            >>> model.get_layer("scores").weights[0].shape
            (2, 4)
        """
        layers = self.layers
        if isinstance(name, int):
            raise UserError(f"get_layer takes a name; write get_layer(index={name})")
        if index is not None:
            if not -len(layers) <= index < len(layers):
                raise UserError(f"the model has {len(layers)} layers; there is no layer {index}")
            return layers[index]
        if not any(layer.name == name for layer in layers):
            names = layer_names([*self._inputs(), *self._outputs()])
            by_name: dict[str, Any] = {names[id(layer)]: layer for layer in layers}
        else:
            by_name = {layer.name or "": layer for layer in layers}
        models = {symbol.model.name: symbol.model for symbol in ancestors(self._outputs()) if symbol.model is not None}
        by_name = models | by_name
        if name not in by_name:
            hint = nearest_or_listed(str(name), by_name, "these are")
            raise UserError(f"the model has no layer {name!r}{hint}")
        return by_name[name]

    @property
    def trainable(self) -> bool:
        """Whether training changes the params of any layer or loss; setting it applies to all of them."""
        return any(layer.trainable for layer in self._builders())

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        for layer in layers_with_losses(self._outputs(), self.objective):
            layer.trainable = trainable

    def _inputs(self) -> list[Symbol]:
        return self.inputs

    def _outputs(self) -> list[Symbol]:
        if not self.outputs and callable(getattr(type(self), "call", None)):
            x = self.inputs[0] if len(self.inputs) == 1 else list(self.inputs)
            self.outputs = _connected(self, _symbols("outputs", type(self).call(self, x)))  # type: ignore[attr-defined]
        return self.outputs

    def input_names(self) -> list[str]:
        """Return the names of the inputs."""
        return [symbol.builder.name or "" for symbol in self._inputs()]

    def output_layers(self) -> list[str]:
        """Return the names of the layers with the model's outputs."""
        return self._written().outputs

    def label_inputs(self) -> list[str]:
        """Return for each output the name of the input layer that reads its labels."""
        if len(self.objective.losses) <= 1:
            return self.input_names()[:1]
        return self._written().label_inputs

    def label_examples(self) -> dict[str, np.ndarray]:
        """Return example labels (1, ...) of each input layer, as the losses accept them."""
        return self._written().label_examples

    def as_labels(self, y: Any) -> Any:
        """Convert labels to the form that the losses accept (:func:`dsinga.nn.model.labels.labels_for_loss`)."""
        losses = self.objective.losses
        if isinstance(y, dict) and len(losses) > 1:
            y = values_by_name("y", y, [output.builder.name or "" for output in self._outputs()], "output")
        if isinstance(y, list) and len(losses) > 1:
            return [labels_for_loss(loss, labels) for loss, labels in zip(losses, y, strict=False)] + y[len(losses) :]
        if isinstance(y, np.ndarray) and len(losses) > 1 and len(self.label_inputs()) == len(losses):
            names = self.output_layers()
            has_columns = y.ndim == 2 and y.shape[1] == len(names)
            remedy = ", ".join(f"y[:, {n}]" if has_columns else f"y_{name}" for n, name in enumerate(names))
            raise UserError(
                f"the model has {len(names)} outputs, {', '.join(names)}, but y is one array; give a list: [{remedy}]"
            )
        return labels_for_loss(losses[0], y) if losses else y

    def has_channels_last(self) -> bool:
        """Whether an input has images with channels last; then image labels and outputs have, too."""
        return any((symbol.builder.settings["store"] or {}).get("channels_last") for symbol in self._inputs())

    def text_encoders(self) -> dict[str, Any]:
        """Return the tokenizer of each input that accepts texts; None for codes of any length."""
        encoders: dict[str, Any] = {
            symbol.builder.name or "": None
            for symbol in self._inputs()
            if symbol.builder.settings["shape"] in ((None,), [None])
        }
        for symbol in ancestors(self._outputs()):
            if symbol.builder.encoder is not None:
                encoders[symbol.sources[0].builder.name or ""] = symbol.builder.encoder
        return encoders

    def require_loss(self) -> None:
        """Raise UserError before training if the model has neither a loss nor a restricted Boltzmann machine."""
        kinds = {symbol.builder.kind for symbol in ancestors([*self._inputs(), *self._outputs()])}
        if not self.objective.losses and not (kinds & {"RBM", "RBMVis"} or any(map(is_loss, kinds))):
            raise UserError('the model has no loss; call compile first, as in model.compile("sgd", "mse")')

    def parts_of_nets(self) -> list[Any]:
        """Return the objects that identify the net for a cache of nets."""
        losses = self.objective.losses
        symbols = ancestors([*self._inputs(), *self._outputs(), *(loss for loss in losses if isinstance(loss, Symbol))])
        builders = [symbol.builder for symbol in symbols] + [loss for loss in losses if isinstance(loss, LayerBuilder)]
        parts: list[Any] = [self.name, self.objective, *vars(self.optimizer).values()]
        parts += *self.job_changes, *self._outputs(), *symbols
        parts += [(symbol.builder.settings["store"] or {}).get("channels_last") for symbol in self._inputs()]
        for builder in builders:
            parts += builder.name, builder.settings, builder.write, builder.trainable
        return parts

    def _written(self) -> Any:
        return self._kept.get(self, "written", lambda: _write(self, PhaseRecords()))

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one record of each input."""
        texts = {name: encoder.steps for name, encoder in self.text_encoders().items() if encoder is not None}
        shapes = [
            texts.get(name, symbol.builder.settings["shape"])
            for name, symbol in zip(self.input_names(), self._inputs(), strict=True)
        ]
        rows = [tuple(shape) if isinstance(shape, Iterable) else (shape,) for shape in shapes]
        if any(None in row for row in rows):
            return super().input_shapes()
        return dict(zip(self.input_names(), rows, strict=True))

    def make_job(self, phases: dict[str, PhaseRecords], batch_size: int | None, fields: dict[str, Any]) -> Job:
        """Return the job for the given phases, not yet bound to data."""
        train = phases.get("train", PhaseRecords())
        written = _write(self, train, weighted_phases(phases))
        check_metric_names(self.metrics, {conf.type_name.removeprefix("k") for conf in written.layers})
        layers: list[LayerConf] = []
        for name, conf in written.inputs.items():
            stores = {phase: records.store_fields(name) for phase, records in phases.items()}
            layers += layers_of_input(conf, stores, batch_size or 32)
        layers += written.layers
        job = Job(
            **{
                "name": self.name,
                "train_one_batch": self.objective.algorithm or algorithm_for(layers),
                "updater": penalised(self.optimizer, written.penalties) if written.penalties else self.optimizer,
                "cluster": self.objective.cluster,
                "net": {"layer": layers},
                **fields,
            }
        )
        return changed(CheckedJob(job), self.job_changes).job

    def __repr__(self) -> str:
        inputs = f" from {', '.join(self.input_names())}" if self._outputs() else ""
        return f"<Model {self.name!r}{inputs}>"


def algorithm_for(layers: Sequence[LayerConf]) -> AlgConf:
    """Choose contrastive divergence for nets with restricted Boltzmann machines, else back-propagation."""
    machines = any(conf.type is LayerType.kRBMVis for conf in layers)
    return AlgConf(alg="kCD", cd_conf={}) if machines else AlgConf(alg="kBP")  # type: ignore[arg-type, call-arg]


@with_types
def CD(k: int = 1) -> AlgConf:
    """Train restricted Boltzmann machines with ``k`` Gibbs steps a batch: ``compile(algorithm=nn.CD(k=5))``."""
    return AlgConf(alg="kCD", cd_conf={"cd_k": k})  # type: ignore[arg-type, call-arg]


def _symbols(what: str, features: Any) -> list[Symbol]:
    """Check that a model's inputs or outputs are symbolic tensors, and return them as a list."""
    symbols = flatten([list(features.values()) if isinstance(features, dict) else features])
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise UserError(f"{what} of nn.Model are features of layers, as in h = nn.Dense(10)(x), not {symbol!r}")
    return symbols


def _connected(model: Model, outputs: list[Symbol]) -> list[Symbol]:
    """Check that a model's outputs depend on no input that it lacks, and return them."""
    for symbol in ancestors(outputs):
        if symbol.builder.kind == INPUT and symbol not in model.inputs:
            raise UserError(f"the outputs need the input {symbol.builder.name!r}, which is not in inputs=")
    _registered(model, layers_of(outputs))
    return outputs


def _registered(model: Model, layers: list[LayerBuilder]) -> list[LayerBuilder]:
    """Tell layers which model contains them, so that models share a common layer's params; return the layers."""
    for layer in layers:
        layer.models.add(model)
    return layers


def _write(model: Model, train: PhaseRecords, weighted: Sequence[Phase] = ()) -> Any:
    """Convert the model to job layers for training data; remember record shapes and each layer's params."""
    shapes = model.record_shapes | train.shapes
    labels = {name: shape for name, shape in train.label_shapes.items() if shape is not None}
    model.label_shapes |= labels
    losses = (loss for loss in model.objective.losses if not isinstance(loss, Symbol))
    label_shapes = train.label_shapes
    if any(loss_kind(loss) == "FunctionLoss" for loss in losses):  # its labels have a fixed shape
        label_shapes = {**model.label_shapes, **train.label_shapes}
    written = write_net(model._inputs(), model._outputs(), model.objective, shapes, label_shapes, weighted)
    model._shared = model._shared.known(written.owners, model.trained.params or {})
    model.record_shapes |= {name: shape for name, shape in train.shapes.items() if name != SAMPLE_WEIGHT}
    return written
