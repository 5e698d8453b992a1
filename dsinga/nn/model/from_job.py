"""Makes a model from a job or job file, or loads one from the folder of a saved model."""

from __future__ import annotations

import contextlib
import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dsinga.api.trained import FILES, JOB, PARAMS
from dsinga.base.arguments import value_text
from dsinga.base.durable_files import current_file, local_folder, read_saved
from dsinga.base.errors import PathNotFound, UserError
from dsinga.checkpoint.tensor_files import check_marks
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, LayerConf, LayerType, Phase
from dsinga.job import load as load_job
from dsinga.job.message import set_fields
from dsinga.net import input_layers
from dsinga.net.layer_classes import SAMPLE_WEIGHT, layer_class
from dsinga.nn.model.labels import labels_for_loss
from dsinga.nn.model.records import weighted_phases
from dsinga.nn.model.trainable import Trainable
from dsinga.nn.words.keras_arguments import MODEL_ATTRIBUTES, checked
from dsinga.nn.words.losses import layer_type, loss_kind, metric_names, without_torch
from dsinga.nn.words.metrics import metrics_by_output
from dsinga.nn.words.optimizers import updater_conf
from dsinga.nn.writing.net_conf import weighted
from dsinga.nn.writing.symbol import flatten
from dsinga.nn.writing.writer import make_conf
from dsinga.reading.given import PhaseRecords
from dsinga.reading.learnt_statistics import MANY

_FREEZE = (
    "a model of a job freezes params in the job: param { static: true } in its layers; or describe the net by "
    'nn.Sequential, freeze its layers, and set model.params = "FOLDER/params.safetensors"'
)


class OpenSaved(Protocol):
    """A function of an add-on that opens saved objects other than models, such as estimators (kind "saved")."""

    def __call__(self, folder: Path) -> JobModel:
        """Return the saved object in a folder as a model."""


class JobModel(Trainable):
    """A model made from a job, so that you can ``fit`` it and ``predict`` in Python."""

    default_batch_size = None
    _attributes = ChainMap(dict.fromkeys(("layers", "get_layer"), _FREEZE), MODEL_ATTRIBUTES)

    def __init__(self, job: Job):
        super().__init__(job.name)
        self.base = job
        if job.seed:
            self.trained = replace(self.trained, seed=job.seed)
        self.default_epochs = None if job.train_steps else 1
        if job.checkpoint_path:
            self.trained = replace(self.trained, before=MANY)
        if job.params:
            self.params, self.base = job.params, job.with_params({})
        self._examples: dict[Any, dict[str, np.ndarray]] = {}  # examples of labels, by record shapes
        self._has_label_inputs = False  # whether inputs used only for labels get them from ``y``

    def _train_inputs(self) -> list[LayerConf]:
        return input_layers(self.base.neuralnet, Phase.kTrain)

    def _records_inputs(self) -> list[LayerConf]:
        """Return the job's input layers that read the argument ``x`` of ``fit`` (others read labels)."""
        inputs = self._train_inputs()
        if not self._has_label_inputs:
            return inputs
        read = {
            source
            for layer in self.base.neuralnet.layer
            for index, source in enumerate(layer.srclayers)
            if index != layer_class(layer).labels.source
        }
        return [layer for layer in inputs if layer.name in read]

    def input_names(self) -> list[str]:
        """Return the names of the job's input layers that read ``x``."""
        return [layer.name for layer in self._records_inputs()]

    def label_inputs(self) -> list[str]:
        """Return the names of the input layers that read labels."""
        labelled = {layer_class(layer).labels.layer_of(layer.srclayers): None for layer in self.base.neuralnet.layer}
        inputs = [layer.name for layer in self._train_inputs()]
        return [name for name in labelled if name in inputs]

    def label_examples(self) -> dict[str, np.ndarray]:
        """Return example labels of each input layer, (1, ...), to check the shape and dtype of ``y``."""
        return {name: np.zeros(1, np.int64) for name in self.label_inputs()} | self._known_examples()

    def _known_examples(self) -> dict[str, np.ndarray]:
        """Return example labels (1, ...) by input layer; none if the record shapes are unknown."""
        shapes = self.record_shapes
        with contextlib.suppress(UserError):
            shapes = shapes or self.input_shapes()
        key = tuple(sorted(shapes.items()))
        if key not in self._examples:
            self._examples = {key: examples_for(self.base, shapes)}
        return self._examples[key]

    def as_labels(self, y: Any) -> Any:
        """Convert labels to the form that the losses accept: (n, 1) to (n,), one-hot rows to class indices."""
        examples = [*self._known_examples().values()]
        if not (isinstance(y, np.ndarray) and y.ndim == 2 and [example.ndim for example in examples] == [1]):
            return y
        if y.shape[1] == 1:
            return y[:, 0]
        is_class = examples[0].dtype.kind == "i" and y.dtype.kind in "biuf"
        return labels_for_loss("categorical_crossentropy", y) if is_class else y

    def output_layers(self) -> list[str]:
        """Return the layers with predictions: the last ones, or the inputs of losses if only losses are last."""
        layers = [layer for layer in self.base.neuralnet.layer if layer.in_phase(Phase.kTest)]
        losses = [layer for layer in layers if layer_class(layer).is_loss]
        outputs = [layer for layer in layers if layer_class(layer).is_output]
        metrics = [layer for layer in outputs if layer_class(layer).labels.source is not None]  # compared with labels
        compared = {layer.name for layer in layers if layer_class(layer).new_labels or layer_class(layer).is_input}
        taken = {source for layer in layers for source in layer.srclayers}
        ends = [layer.name for layer in layers if layer.name not in taken | compared and layer not in losses + metrics]
        return ends or [loss.srclayers[0] for loss in losses]

    @checked
    def compile(self, optimizer: Any = None, loss: Any = None, metrics: Any = None, cluster: Any = None) -> None:
        """Replace the optimizer, the topology, or both; losses and metrics are layers of the job."""
        self.refuse_while_training("compile")
        self._check_objective(loss, metrics)
        if optimizer is not None:
            self.base = self.base.replace(updater=updater_conf(optimizer))
            self.trained = self.trained.with_optimizer()
        if cluster is not None:
            self.base = self.base.replace(cluster=cluster)

    def _check_objective(self, loss: Any, metrics: Any) -> None:
        """Raise UserError for arguments of ``compile`` that name losses or metrics missing from the job."""
        layers = [layer for layer in self.base.neuralnet.layer if layer.in_phase(Phase.kTest)]
        losses = {layer.type_name.removeprefix("k") for layer in layers if layer_class(layer).is_loss}
        for chosen in flatten([*loss.values()] if isinstance(loss, dict) else [] if loss is None else [loss]):
            kind = loss_kind(chosen := without_torch(chosen))
            cls = layer_type(kind)
            if not losses & {kind, f"Field{kind}"} and not any(layer_class(layer) is cls for layer in layers):
                present = f"its loss, {', '.join(sorted(losses))}" if losses else "to no loss"
                raise UserError(
                    f"a model from nn.load_model or nn.from_job keeps {present}; for {value_text(chosen)} make the net "
                    "again by new = nn.Sequential([...]), and set new.params = model.params"
                )
        reported = metric_names({layer.type_name.removeprefix("k") for layer in layers})
        names = flatten(metrics_by_output([*metrics.values()] if isinstance(metrics, dict) else metrics, [""]))
        for name in map(str, names):
            if name not in reported and not any(name in layer_class(layer).metric_names for layer in layers):
                raise UserError(f"the layers of the job report {', '.join(sorted(reported))}, not {name}; leave it out")

    def parts_of_nets(self) -> list[Any]:
        """Return the objects that identify the net for a cache of nets: here the job."""
        return [self.base]

    def make_job(self, phases: dict[str, PhaseRecords], batch_size: int | None, fields: dict[str, Any]) -> Job:
        """Return the job for the given phases, not yet bound to data."""
        names = [layer.name for layer in self._train_inputs()]
        trained = phases.get("train", PhaseRecords()).shapes
        for name in trained:
            if name not in [*names, SAMPLE_WEIGHT]:
                raise UserError(f"the job has no input layer {name!r}; its input layers are {', '.join(names)}")
        layers = []
        for layer in self.base.neuralnet.layer:
            store = layer.store_conf
            if store is not None and layer_class(layer).is_input:
                part = "train" if layer.in_phase(Phase.kTrain) else "val" if layer.in_phase(Phase.kVal) else "test"
                changes = phases[part].store_fields(layer.name) if part in phases else {}
                changes |= {} if batch_size is None else {"batchsize": batch_size}
                layer = layer.replace(store_conf=store.replace(**changes)) if changes else layer
            layers.append(layer)
        if SAMPLE_WEIGHT not in names and (weighted := weighted_phases(phases)):
            layers = with_sample_weights(layers, weighted)
        return self.base.replace(**{"neuralnet": self.base.neuralnet.replace(layer=layers), **fields})

    def trained_definitions(self) -> dict[str, dict[str, Any]]:
        """Return how training read each input (windows, table), to read new data in the same way."""
        stores = {layer.name: layer.store_conf for layer in self._train_inputs()}
        named = {name: store.definition for name, store in stores.items() if store and store.definition}
        return named | super().trained_definitions()

    def has_channels_last(self) -> bool:
        """Whether an input has images with channels last; then image labels and outputs have, too."""
        return any(layer.store_conf is not None and layer.store_conf.channels_last for layer in self._train_inputs())

    def text_encoders(self) -> dict[str, Any]:
        """Return the tokenizer of each input that accepts texts; None for codes of any length."""
        layers = self.base.neuralnet.layer
        ends = [
            layer.srclayers[0]
            for layer in layers
            if layer.type is LayerType.kSequenceLength
            and (layer.sequencelength_conf is None or layer.sequencelength_conf.mask_value is None)
        ]
        encoders: dict[str, Any] = dict.fromkeys(name for name in ends if name in self.input_names())
        for layer in self._records_inputs():
            if layer.store_conf is not None and (text := layer.store_conf.text):
                encoders[layer.name] = text.encoder()
        return encoders

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one record of each input that the job names."""
        shapes = {layer.name: tuple(layer.store_conf.shape) for layer in self._records_inputs() if layer.store_conf}
        return shapes if shapes and all(shapes.values()) else super().input_shapes()

    @property
    def trainable(self) -> bool:
        """Whether training changes params; read-only, so set ``static`` in the job to freeze a param."""
        return any(not param.static for param in self.predicting_net().params.values())

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        raise UserError(_FREEZE)

    def __repr__(self) -> str:
        return f"<model of the job {self.name!r}>"


def examples_for(job: Job, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return example labels (1, ...) by input layer for records of these shapes, {} if they do not fit."""
    examples: dict[str, np.ndarray] = {}
    records = {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
    try:
        net = LocalNet(job, records).unlabelled_net((), Phase.kTrain)
    except UserError:
        return examples
    features = {node.layer.name: node.layer.shape[1:] for node in net.nodes}
    layers = {layer.name: layer for layer in job.neuralnet.layer}
    for layer in layers.values():
        cls = layer_class(layer)
        if not cls.is_loss or layer.srclayers[0] not in features:
            continue
        source = layers[cls.labels.layer_of(layer.srclayers) or layer.srclayers[-1]]  # a kLabel, or the input itself
        settings = set_fields(layer.settings_of(cls.Conf)) if cls.Conf else {}
        name = layer_class(source).labels.layer_of(source.srclayers) or source.name
        if layer_class(layers[name]).is_input and name not in examples:
            examples[name] = cls.label_example(settings, features[layer.srclayers[0]])
    return examples


def with_sample_weights(layers: list[LayerConf], phases: Sequence[Phase]) -> list[LayerConf]:
    """Add an input layer of sample weights, read by the losses in these phases, to a job's layers."""
    weights = []
    for phase in phases:
        first = next(layer for layer in layers if layer_class(layer).is_input and layer.in_phase(phase))
        store = {} if first.store_conf is None else {"batchsize": first.store_conf.batchsize}
        weights.append(make_conf(SAMPLE_WEIGHT, "kRecordInput", [], store_conf=store, include=[phase.name]))
    return [*weights, *(part for layer in layers for part in weighted(layer, phases))]


@checked
def from_job(job: Job | str | os.PathLike[str]) -> JobModel:
    """Return a model of a job or a job file. Raises JobError for an unreadable file."""
    return JobModel(job if isinstance(job, Job) else load_job(job))


@checked
def load_model(folder: str | os.PathLike[str]) -> JobModel:
    """Return the model saved by :meth:`dsinga.nn.Model.save`, with params and optimizer state.

    You need not call ``compile``; ``fit`` continues the training.

    Other files:

    - ``.onnx``: ``nn.load_onnx(path)``.
    - PyTorch: ``dsinga.convert.from_torch(module)``, once PyTorch has loaded the file.
    - The workspace of a ``fit``: build the model, then call ``model.load_weights(workspace)``.
    - A job file: ``nn.from_job(path)``.

    Args:
        folder: folder that ``model.save(folder)`` wrote.

    Raises UserError for a missing or damaged file.

    Examples:
        >>> import numpy as np
        >>> from dsinga import nn
        >>> x, y = np.zeros((8, 4), np.float32), np.zeros(8, int)
        >>> model = nn.Sequential([nn.Input(4), nn.Dense(2)])
        >>> model.compile("adam", "sparse_categorical_crossentropy")
        >>> history = model.fit(x, y, progress=False)
        >>> model.save("net")
        >>> nn.load_model("net").predict(x).shape
        (8, 2)
    """
    path = local_folder(folder)
    if not path.is_dir():
        raise _no_folder(path)
    if current_file(path / "estimator.json").is_file():
        raise UserError(f"{path} was saved by an estimator; call dsinga.estimators.load({str(path)!r})")
    return read_saved(path, FILES, lambda place: _read_model(path, place))


# What reads the files that load_model does not, by suffix.
_READERS = {
    ".onnx": "call nn.load_onnx({0!r})",
    ".conf": "call nn.from_job({0!r})",
    **dict.fromkeys((".pt", ".pth"), "load it with PyTorch, and call dsinga.convert.from_torch(module)"),
    **dict.fromkeys((".keras", ".h5"), "build the model in nn, and call model.set_weights(keras_model.get_weights())"),
    ".safetensors": "build the model, and call model.load_weights({0!r})",
}


def _no_folder(path: Path) -> UserError:
    """Return the error for ``load_model`` of a path that is no folder."""
    if not path.exists():
        return PathNotFound(f"{path} was not found; give the folder that model.save(folder) wrote")
    remedy = _READERS.get(path.suffix, "give the folder that model.save(folder) wrote").format(str(path))
    return UserError(f"{path} is a file; {remedy}")


def _read_model(path: Path, place: Callable[[str], Path]) -> JobModel:
    if not place(JOB).is_file() and (path / "checkpoint").is_dir():
        raise UserError(
            f"{path} is the workspace of a run and has no job.conf; to go on with its params, make the model as in the "
            f"run, or with nn.from_job(job), and call model.load_weights({str(path)!r}); to resume the run, call "
            f"dsinga.train(job, workspace={str(path)!r}, resume=True)"
        )
    if not place(JOB).is_file():
        raise UserError(f"{path} has no job.conf; give the folder that model.save(folder) wrote, or use nn.from_job")
    model = from_job(place(JOB))
    model.params = place(PARAMS)
    check_marks(place, PARAMS, FILES)
    model.trained = replace(model.trained.with_state_of(place), is_complete=True)
    model.default_epochs = 1  # the job's steps are those of its last fit; the next one has its own
    model._has_label_inputs = True
    return model
