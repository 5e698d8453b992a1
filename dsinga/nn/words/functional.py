"""Keras's functions that are no layers: sums and the like of features, one-hot labels, copies of models."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from dsinga.base.arguments import check_whole, value_text
from dsinga.base.errors import UserError
from dsinga.nn.model.training_state import FIRST_SEED
from dsinga.nn.words.basic_layers import Concatenate
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.words.layer_functions import layer_functions
from dsinga.nn.writing.symbol import Symbol


def of_features(called: str, what: str, by_pairs: bool = False) -> Callable[..., Symbol]:
    """Return Keras's function of a list of features, which calls the layer of this name, on all of them or on pairs."""

    def function(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
        def call(*sources: Symbol) -> Symbol:
            feature: Symbol = layer_functions[called.title()](name=name)(list(sources))
            return feature

        return functools.reduce(call, inputs) if by_pairs else call(*inputs)

    function.__name__ = function.__qualname__ = called
    function.__doc__ = f"Return the {what}, number by number."
    return checked(function)


add, multiply = of_features("add", "sum of features"), of_features("multiply", "product of features")
subtract = of_features("subtract", "difference of two features")
maximum = of_features("maximum", "larger numbers of features", by_pairs=True)
minimum = of_features("minimum", "smaller numbers of features", by_pairs=True)


@checked
def average(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the mean of features, number by number."""
    return (
        of_features("average", "mean of features")(inputs, name)
        if len(inputs) == 2
        else add(inputs, name) / len(inputs)
    )


@checked
def concatenate(inputs: Sequence[Symbol], axis: int = -1, name: str | None = None) -> Symbol:
    """Return features joined along an axis."""
    feature: Symbol = Concatenate(axis=axis, name=name)(list(inputs))
    return feature


@checked
def to_categorical(x: Any, num_classes: int | None = None) -> ndarray:
    """Return classes (...) as one-hot rows (..., num_classes), float32; an axis of length 1 at the end goes.

    Without ``num_classes`` there are as many as the largest class says. Raises UserError for what are no classes.
    """
    classes = np.asarray(x)
    classes = classes[..., 0] if classes.ndim > 1 and classes.shape[-1] == 1 else classes
    if not classes.size or classes.dtype.kind not in "biuf" or (classes != np.floor(classes)).any():
        raise UserError(f"to_categorical takes classes, whole numbers from 0, not {value_text(x)}")
    if num_classes is not None:
        check_whole("num_classes", num_classes, 1)
    count, classes = num_classes or int(classes.max()) + 1, classes.astype(np.int64)
    if classes.min() < 0 or classes.max() >= count:
        raise UserError(
            f"to_categorical: x has the class {classes[(classes < 0) | (classes >= count)].flat[0]}, which "
            f"is none of {count} classes; they are 0 to {count - 1}"
        )
    return np.eye(count, dtype=np.float32)[classes]


@checked
def set_random_seed(seed: int) -> None:
    """Let models that are made from now on begin with this seed, and seed Python's and numpy's random numbers."""
    check_whole("seed", seed, 0)
    FIRST_SEED[0] = seed
    random.seed(seed)
    np.random.seed(seed)


def clear_session(free_memory: bool = True) -> None:
    """Do nothing: models keep no state outside of themselves."""
