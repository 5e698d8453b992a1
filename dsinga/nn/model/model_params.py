"""The part of a model that sets, reads, saves and loads params, builds nets, and prints the summary."""

from __future__ import annotations

import html
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import dsinga.api as api
from dsinga.api.trained import FILES, JOB, PARAMS, Trained
from dsinga.base.arguments import with_types
from dsinga.base.arrays import NamedParams, refuse_nan
from dsinga.base.durable_files import explained_writing, local_folder, replaced_files, write_file
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.checkpoint import Checkpoint, export_safetensors, read_params
from dsinga.checkpoint.tensor_files import write_tensors
from dsinga.data import RecordNames
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, job_html, redact_job, to_text
from dsinga.job.functions import REMEDY, local_functions
from dsinga.net import NeuralNet
from dsinga.nn.model.added_methods import AddedMethods
from dsinga.nn.model.given_data import as_param
from dsinga.nn.model.kept_nets import KeptNets
from dsinga.nn.model.predicting import local_net
from dsinga.nn.model.training_state import (
    FIRST_SEED,
    Fits,
    leave_to_user,
    model_folder,
    saved_params,
    set_trained,
    with_state,
)
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.writing.symbol import LayerBuilder
from dsinga.nn.writing.variables import HasVariables, Variable
from dsinga.reading.given import JobArguments, PhaseRecords
from dsinga.training import check_params, check_start

_log = logging.getLogger(__name__)


class ModelParams(AddedMethods, HasVariables, ABC):
    """Base class of models: sets, reads, saves and loads the params of a net.

    Attributes:
        trained: params, optimizer state and names of records.
        record_shapes: known shapes of records, by input.
        label_shapes: known shapes of a row's training labels, by input.
        stop_training: set it to True in a callback to end training.
    """

    def __init__(self, name: str):
        self.name = name
        self.result: api.Result | None = None
        self.record_shapes: dict[str, tuple[int, ...]] = {}
        self.label_shapes: dict[str, tuple[int, ...]] = {}
        self._kept = KeptNets()
        self.trained = Trained(seed=FIRST_SEED[0])
        self.stop_training = False
        self._fits = Fits()

    @property
    def _params(self) -> dict[str, np.ndarray] | None:
        """The params by name, or None before they are initialised."""
        if self._fits.running is not None:
            self._fits.running.refresh()
        return self.trained.params

    @_params.setter
    def _params(self, params: dict[str, np.ndarray] | None) -> None:
        self.trained = self.trained.with_values(params)

    def refuse_while_training(self, action: str) -> None:
        """Raise UserError if a callback does something that cannot affect the running ``fit``."""
        if self._fits.running is not None:
            self._fits.running.refuse(action)

    def _builders(self) -> list[LayerBuilder]:
        """Return all layers of a model described in Python, also those that others wrap."""
        return []

    @abstractmethod
    def input_names(self) -> list[str]:
        """Return the names of the input layers that read the argument ``x`` of ``fit``."""

    @abstractmethod
    def output_layers(self) -> list[str]:
        """Return the names of the layers that compute the predictions."""

    @abstractmethod
    def make_job(self, phases: dict[str, PhaseRecords], batch_size: int | None, fields: dict[str, Any]) -> Job:
        """Return a job for data of these shapes, not yet bound to the data."""

    def known_params(self, net: LocalNet) -> dict[str, np.ndarray]:
        """Return the params of a net, with initial values for those that the model lacks."""
        if not self.trained.is_complete:
            given, names = self._params or {}, net.net.params
            check_start(names, given)
            if unknown := [name for name in given if name not in names]:
                _log.warning("the net has no params %s: they are left out", listed(unknown))
            known = {name: array for name, array in given.items() if name in names}
            drawn = net.job.seed if len(known) < len(names) else self.trained.drawn
            params = net.initial_params(known)
            set_trained(self, replace(self.trained, params=params, is_complete=True, drawn=drawn))
        return self._params or {}

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The params by name, float32: trained values, or initial values if the input shapes are known.

        You can set them to arrays by name, a :class:`dsinga.Result`, or the path of a checkpoint. The next ``fit``
        starts from them, and from initial values for missing ones. If a callback sets them, the running ``fit``
        continues from them.
        """
        if self.trained.params is None:
            self.known_params(self.shaped_net())
        params = self._params
        assert params is not None
        leave_to_user(params)
        if self._fits.running is None and not isinstance(params, NamedParams):
            self._params = params = NamedParams(params, {})
        if isinstance(params, NamedParams):
            params.names = self.trained.names
        return params

    @params.setter
    def params(self, params: Mapping[str, np.ndarray] | api.Result | str | os.PathLike[str]) -> None:
        self._kept = KeptNets()
        params = params.params if isinstance(params, api.Result) else params
        arrays = read_params(params) if isinstance(params, (str, os.PathLike)) else params
        if not isinstance(arrays, Mapping):
            raise UserError(
                f"model.params takes arrays by name, a result, or the path of a checkpoint, not {type(params).__name__}"
            )
        if self._fits.arguments is None:
            self.trained = replace(self.trained, names=RecordNames.of_params(arrays) or self.trained.names)
        arrays = {name: as_param(name, array) for name, array in arrays.items()}
        if self._fits.running is not None:
            self._fits.running.check_open()
            self._params = {**(self._params or {}), **arrays}
            return
        refuse_nan(arrays)
        set_trained(self, self.trained.with_params(arrays))

    def set_param(self, name: str, array: np.ndarray) -> None:
        """Set the value of a param; the optimizer keeps its state."""
        if self._fits.running is not None:
            self._fits.running.check_open()
        refuse_nan({name: array})
        self._params = {**self.params, name: as_param(name, array)}

    def shaped_net(self) -> LocalNet:
        """Build the net for the known input shapes."""
        shapes = self.record_shapes or self.input_shapes()
        zeros = {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
        return local_net(self, {name: (array, None) for name, array in zeros.items()}, has_labels=True)[0]

    def predicting_net(self) -> NeuralNet:
        """Build the net for predictions, without losses."""
        return self.shaped_net().unlabelled_net(self.output_layers())

    @checked
    def summary(self) -> None:
        """Print a table of the layers with shapes and numbers of params.

        Examples:
            >>> from dsinga import nn
            >>> nn.Sequential([nn.Input(4), nn.Dense(2)]).summary()
            layer  type           feature  params
            data   kRecordInput   4             0
            dense  kInnerProduct  2            10
            model: 10 numbers in params, 40 bytes
        """
        from dsinga.net.description import as_table  # not needed for training

        local = self.shaped_net()
        try:
            net = local.net
        except UserError:  # a job does not give the shape of labels that are fields
            net = local.unlabelled_net(self.output_layers())
        print(as_table(net, self.name))

    def __str__(self) -> str:
        try:
            return str(_written_job(self))
        except UserError as error:
            return f"{self!r}: {error}"

    def _repr_html_(self) -> str:
        try:
            return job_html(_written_job(self))
        except UserError as error:
            return f"<p>{html.escape(f'{self!r}: {error}')}</p>"

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one record of each input that the model itself defines."""
        raise UserError("the shapes of the model's inputs are not known; give nn.Input a shape, or call fit")

    def ordered_params(self) -> dict[str, np.ndarray]:
        """Return the params by name in the order of the layers, with initial values for missing ones."""
        try:
            local = self.shaped_net()
        except UserError:
            if self._params is None:
                raise
            names = self.result.net.params if self.result else self._params
            return {name: self._params[name] for name in names if name in self._params}
        params = self.known_params(local)
        check_params(local.net, params)
        return {name: params[name] for name in local.net.params if name in params}

    @with_types
    def get_weights(self) -> list[np.ndarray]:
        """Return copies of all params, even frozen ones, in the order of the layers.

        Examples:
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Input(4), nn.Dense(2)])
            >>> [array.shape for array in model.get_weights()]
            [(2, 4), (2,)]
        """
        return [array.copy() for array in self.ordered_params().values()]

    @property
    def weights(self) -> list[Variable]:
        """The params in the order of the layers. Raises UserError if the input shapes are unknown."""
        params = self.shaped_net().net.params
        return [
            Variable(self, name, params[name].trainable and not params[name].static) for name in self.ordered_params()
        ]

    @with_types
    def count_params(self) -> int:
        """Return the total size of all params. Raises UserError if the input shapes are unknown."""
        return sum(array.size for array in self.ordered_params().values())

    @with_types
    def set_weights(self, weights: Iterable[np.ndarray]) -> None:
        """Set the params, in the order of :meth:`get_weights`. Raises UserError for a wrong number or shape."""
        if isinstance(weights, Mapping):
            raise UserError("set_weights takes arrays in order; set model.params for arrays by name")
        if isinstance(weights, str) or not isinstance(weights, Iterable):
            raise UserError(f"set_weights takes a list of arrays, as get_weights returns it, not {weights!r}")
        params, weights = self.ordered_params(), list(weights)
        if len(params) != len(weights):
            raise UserError(f"the model has {len(params)} params ({', '.join(params)}), but {len(weights)} are given")
        for number, ((name, param), array) in enumerate(zip(params.items(), weights, strict=True)):
            if np.shape(array) != param.shape:
                remedy = "; give its transpose, array.T" if np.shape(array)[::-1] == param.shape else ""
                raise UserError(
                    f"set_weights: array {number} is {np.shape(array)}, but {name!r} is {param.shape}{remedy}"
                )
        self.params = dict(zip(params, weights, strict=True))

    @checked
    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write the params to a safetensors file for :meth:`load_weights`."""
        file = local_folder(path)
        if file.is_dir():
            raise UserError(f"{file} is a folder; name a file, as in {file / PARAMS}")
        with explained_writing(file):
            export_safetensors(Checkpoint(0, NamedParams(self.ordered_params(), self.trained.names), {}, {}), file)

    @checked
    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Set the params from a file or the folder of a saved model.

        Raises UserError for a damaged file, and for arrays of other shapes than the model's, if known.
        """
        arrays = saved_params(path, PARAMS)
        if self._fits.running is None:
            self._check_shapes(arrays, str(path))
        self.params = arrays

    def _check_shapes(self, arrays: Mapping[str, Any], path: str) -> None:
        """Raise UserError if an array differs in shape from the param of its name."""
        try:
            params = self.shaped_net().net.params
        except UserError:
            return
        for name, param in params.items():
            shape = tuple(arrays[name].shape) if name in arrays else param.shape
            if shape != param.shape and not param.spec.by_rows:
                raise UserError(
                    f"{path} has {name!r} of shape {shape}, but this model's is {param.shape}; make its layers as in "
                    "the model that was saved, or use nn.load_model of a folder that model.save wrote"
                )

    @property
    def history(self) -> Any:
        """The history of the last ``fit``, or None."""
        return None if self.result is None else self.result.history

    @checked
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder, to be read by :func:`load_model`.

        The folder has ``job.conf``, ``params.safetensors``, ``optimizer.safetensors`` after a ``fit``, and
        ``names.json`` if the training records name classes and columns. Nothing is pickled: functions are saved by
        name. A warning lists functions, such as lambdas, that another process would not find. An older model in the
        folder is replaced in one step. Raises UserError if the folder cannot be written.

        From a shell, ``dsinga predict FOLDER/job.conf --checkpoint FOLDER/params.safetensors`` uses the saved model.

        Examples:
            >>> import numpy as np
            >>> from dsinga import nn
            >>> model = nn.Sequential([nn.Dense(1)])
            >>> model.compile("sgd", "mse")
            >>> history = model.fit(np.ones((32, 3)), np.ones((32, 1)), progress=False)
            >>> model.save("model")
            >>> nn.load_model("model").predict(np.ones((2, 3))).shape
            (2, 1)
        """
        path, params = model_folder(folder), self.ordered_params()
        job = to_text(redact_job(_written_job(self)))
        if names := local_functions(job):
            listed = ", ".join(names)
            _log.warning("%s: another process finds %s only if it makes the same functions; %s", path, listed, REMEDY)
        with explained_writing(path), replaced_files(path, FILES) as files:
            mark = write_tensors(files / PARAMS, params).mark()
            write_file(files / JOB, f"# {mark}\n{job}")
            with_state(self).write_state(files, mark)


def _written_job(model: ModelParams) -> Job:
    """Return the job to save in a file, the last ``fit``'s or the default one."""
    arguments = model._fits.arguments or JobArguments()
    job = model.make_job(arguments.phases, arguments.batch_size, arguments.fields)
    return job if job.epochs or job.train_steps else job.replace(epochs=1)
