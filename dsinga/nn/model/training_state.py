"""What a model keeps of its training: the running fit, steps on single batches, earlier fits."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dsinga.api.trained import Trained
from dsinga.base.arrays import ParamArrays, refuse_nan
from dsinga.base.durable_files import local_folder, read_saved
from dsinga.base.errors import UserError
from dsinga.checkpoint import read_params
from dsinga.checkpoint.tensor_files import read_safetensors
from dsinga.engine.local_net import LocalNet
from dsinga.extensions import LoopView
from dsinga.nn.model.kept_nets import KeptNets
from dsinga.reading.given import JobArguments
from dsinga.training.local_updater import Slots

_log = logging.getLogger(__name__)
FILES_OF_OTHERS = (".h5", ".hdf5", ".pt", ".pth", ".pb", ".tflite")  # endings of files, not of folders
FIRST_SEED = [0]  # the seed of the first fit of new models


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Check the folder to save a model in. Raises UserError, or warns, if it looks like a file."""
    folder = local_folder(path)
    if folder.suffix == ".onnx":
        raise UserError(f"save writes a folder; write model.export({str(path)!r}) for an ONNX file")
    if folder.suffix in FILES_OF_OTHERS:
        _log.warning("%s is a folder, which nn.load_model reads, and no file of another library", folder)
    return folder


def saved_params(path: str | os.PathLike[str], name: str) -> ParamArrays:
    """Read params from a file, from ``name`` in a model's folder, or from a checkpoint."""
    file = Path(path)
    folder, name = (file, name) if file.is_dir() else (file.parent, file.name)

    def read(place: Callable[[str], Path]) -> ParamArrays | None:
        return read_safetensors(found) if (found := place(name)).is_file() else None

    # Whether there is a file is asked in there, too: another process may move it at any moment.
    arrays = read_saved(folder, [name], read)
    if arrays is None:
        return read_params(path)
    refuse_nan(arrays, str(folder / name))
    return arrays


# Arrays that users may keep, by id. Models that share layers may have the same arrays.
_of_users: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def leave_to_user(params: Mapping[str, np.ndarray]) -> None:
    """Protect arrays that the user has read: later steps replace them instead of changing them."""
    _of_users.update({id(array): array for array in params.values()})


class BatchSteps:
    """The net and the optimizer state that a model keeps between calls of ``train_on_batch``."""

    def __init__(self, net: LocalNet, begin: Trained):
        self.net = net
        self._updater, self._params = net.updater(), dict[str, np.ndarray]()
        self._updater.steps = begin.steps
        shapes = net.net.params
        self._updater.state = {
            name: {slot: np.array(array, np.float32).reshape(-1) for slot, array in slots.items()}
            for name, slots in begin.slots.items()
            if name in shapes
        }
        self.slots = begin.slots

    def step(
        self, trained: Trained, params: Mapping[str, np.ndarray], records: Any, labels: Any
    ) -> tuple[Trained, Any]:
        """Train on one batch; return the new params and optimizer state, and the metrics before the step.

        Earlier steps' arrays are changed in place unless :func:`leave_to_user` protects them.
        """
        self._params = {
            name: array if array is self._params.get(name) and id(array) not in _of_users else array.copy()
            for name, array in params.items()
        }
        gradients, metrics = self.net.backward(self._params, records, labels, step=self._updater.steps)
        self._updater.step(self._params, gradients)
        shapes = self.net.net.params
        slots = {
            name: {slot: array.reshape(shapes[name].shape) for slot, array in arrays.items()}
            for name, arrays in self._updater.state.items()
        }
        self.slots = slots
        return replace(trained, params=self._params, drawn=None, steps=self._updater.steps, slots=slots), metrics


REMEDY = "do it before or after fit"
CLOSED = (
    "the params of a model that fit trains are set in events of a callback at which training stands: on_train_begin, "
    "on_train_end, on_epoch_begin and on_epoch_end, without workers and a client also on_train_batch_begin and "
    "on_train_batch_end"
)


class RunningFit:
    """Gives callbacks access to a running ``fit``: they read and set the run's params in the model.

    Params are copied when a callback first reads them, as read-only arrays.
    """

    def __init__(self, model: Any, steps: int, seed: int):
        self._model, self._steps, self._seed = model, steps, seed
        self._loop: LoopView | None = None  # within an event at which training stands
        self._params: dict[str, np.ndarray] = {}
        self._slots: Slots = {}
        self._step: int | None = None  # the step of these params
        self._state_step: int | None = None  # the step of this state
        self._before = model.trained
        self._optimizer = self._first_optimizer = optimizer_fields(model)

    @contextmanager
    def event(self, loop: LoopView | None) -> Iterator[None]:
        """Show the run's params in the model during a callback, and pass changes on to the run.

        ``loop`` is None for an event outside the training loop.
        """
        self._loop = loop
        if loop is not None and self._step != loop.step:
            self._step = self._state_step = None
        try:
            yield
            self._return_changes()
            self._return_rate()
        finally:
            self._loop = None

    def refresh(self) -> None:
        """Copy the run's params to the model, unless it has this step's already."""
        if self._loop is None or self._step == self._loop.step:
            return
        self._step = self._loop.step
        self._params = self._loop.params()
        for array in self._params.values():
            array.flags.writeable = False
        self._model.trained = replace(self._model.trained, is_complete=True)
        self._model._params = self._params

    def refresh_state(self) -> None:
        """Copy the run's optimizer state to the model, unless it has this step's already."""
        if self._loop is None or self._state_step == self._loop.step:
            return
        self._state_step = self._loop.step
        self._slots, steps = self._loop.updater_state(), self._steps + self._loop.step
        self._model.trained = replace(self._model.trained, seed=self._seed, steps=steps, slots=self._slots)

    def check_open(self) -> None:
        """Raise UserError unless callbacks may set params at this moment."""
        if self._loop is None:
            raise UserError(CLOSED)
        self.refresh()

    def refuse(self, action: str) -> NoReturn:
        """Raise UserError for a callback's action that cannot affect a running fit."""
        raise UserError(f"{action} has no effect while fit trains the model; {REMEDY}")

    def _return_changes(self) -> None:
        """Give the run the params and optimizer state that a callback set."""
        if self._loop is None or self._step is None:
            return
        params = self._model._params or {}
        changed = {name: array for name, array in params.items() if array is not self._params.get(name)}
        slots = self._model.trained.slots if self._state_step is not None else self._slots
        if changed or slots is not self._slots:
            self._loop.set_params(changed, None if slots is self._slots else slots)
            self._step = self._state_step = None

    def _return_rate(self) -> None:
        """Apply a learning rate that a callback set to the run; refuse other optimizer changes."""
        before, self._optimizer = self._optimizer, optimizer_fields(self._model)
        changed = [name for name, value in self._optimizer.items() if value != before.get(name)]
        if not changed:
            return
        if changed != ["learning_rate"]:
            self.refuse(f"setting {', '.join(changed)} of the optimizer")
        if self._loop is None:
            raise UserError("with workers or a client, set learning_rate in on_epoch_begin or on_epoch_end")
        first, rate = float(self._first_optimizer["learning_rate"]), float(self._optimizer["learning_rate"])
        if not first:
            raise UserError("the learning rate of the fit is 0, which no callback changes; compile with a larger one")
        self._loop.set_rate_factor(self._loop.step, rate / first)

    def close(self) -> None:
        """Restore the model's params and state from before the fit; the trained ones are stored separately."""
        if self._params:
            self._model.trained = self._before
            self._model._params = self._before.params


@dataclass(frozen=True)
class Fits:
    """A model's record of its fits: the running one, earlier workspaces, and steps on single batches."""

    running: RunningFit | None = None
    begins: Mapping[str, Any] = field(default_factory=dict)
    arguments: JobArguments | None = None
    batch_steps: tuple[Any, BatchSteps] | None = None


@contextmanager
def training(model: Any, steps: int, seed: int) -> Iterator[RunningFit]:
    """Let callbacks read and set params during a ``fit`` that begins after ``steps`` optimizer steps."""
    fit = RunningFit(model, steps, seed)
    model._fits = replace(model._fits, running=fit)
    model._kept = KeptNets()  # they hold params, which training replaces
    builders = model._builders()
    try:
        for builder in builders:
            builder.fit = fit
        yield fit
    finally:
        model._fits, model._kept = replace(model._fits, running=None), KeptNets()
        for builder in builders:
            builder.fit = None
        fit.close()


def with_state(model: Any) -> Trained:
    """Return params and optimizer state; during a fit, with the run's current optimizer state."""
    if model._fits.running is not None:
        model._fits.running.refresh_state()
    trained: Trained = model.trained
    return trained


def set_trained(model: Any, trained: Trained) -> None:
    """Set params and optimizer state, also in other models that share layers."""
    model.trained = trained
    model._params = trained.params


def optimizer_fields(model: Any) -> dict[str, Any]:
    """Return the optimizer's settings, to notice changes between fits; {} for a model of a job."""
    return dict(vars(vars(model)["optimizer"])) if "optimizer" in vars(model) else {}
