"""The params of models and layers as Keras's ``weights``: variables with a name, shape and value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dsinga.base.errors import UserError


class Variable:
    """A param of a model, like Keras's variables: reading it returns its current numbers.

    Attributes:
        name: its name in the model, as in ``model.params``; ``path`` is the same.
        trainable: whether training changes it by gradients.
        shape: its shape, which may differ from Keras's (docs/howto/keras.md).
    """

    dtype = "float32"

    def __init__(self, model: Any, name: str, trainable: bool):
        self._model, self.name, self.path, self.trainable = model, name, name, trainable
        self.shape: tuple[int, ...] = model.params[name].shape

    def numpy(self) -> np.ndarray:
        """Return a copy of the param's numbers."""
        array: np.ndarray = self._model.params[self.name].copy()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def assign(self, value: Any) -> None:
        """Set the param's numbers; the optimizer keeps its state. Raises UserError for another shape."""
        array = np.array(value, np.float32)
        if array.shape != self.shape:
            raise UserError(f"assign: {self.name!r} has the shape {self.shape}, not {array.shape}")
        self._model.set_param(self.name, array)

    def __repr__(self) -> str:
        return f"<param {self.name!r}, shape {self.shape}>"


class HasVariables:
    """Base class of models and layers with params: ``weights``, ``trainable_weights`` and others."""

    @property
    def weights(self) -> list[Variable]:
        """The params in order, as variables."""
        raise NotImplementedError

    @property
    def variables(self) -> list[Variable]:
        """The params in order, another name of ``weights``."""
        return self.weights

    @property
    def trainable_weights(self) -> list[Variable]:
        """The params that training changes."""
        return [variable for variable in self.weights if variable.trainable]

    trainable_variables = trainable_weights

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """The params without gradients in training: frozen params and running means."""
        return [variable for variable in self.weights if not variable.trainable]

    non_trainable_variables = non_trainable_weights

    def count_params(self) -> int:
        """Return the total size of the params."""
        return sum(math.prod(variable.shape) for variable in self.weights)
