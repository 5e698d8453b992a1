"""Keras's lowercase functions, such as ``nn.add([x, y])``: sums, products, one-hot labels, seeds."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from dsinga.base.arguments import check_whole, value_text, with_types
from dsinga.base.errors import UserError
from dsinga.nn.model.training_state import FIRST_SEED
from dsinga.nn.words.basic_layers import Add, Average, Maximum, Minimum, Multiply, Subtract
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.words.shape_layers import Concatenate
from dsinga.nn.writing.symbol import LayerBuilder, Symbol


@checked
def add(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the sum of layers' outputs, number by number."""
    return called(Add(name=name), inputs)


@checked
def multiply(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the product of layers' outputs, number by number."""
    return called(Multiply(name=name), inputs)


@checked
def subtract(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the difference of two layers' outputs, number by number."""
    return called(Subtract(name=name), inputs)


@checked
def maximum(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the elementwise maximum of layers' outputs."""
    return functools.reduce(lambda *pair: called(Maximum(name=name), pair), inputs)


@checked
def minimum(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the elementwise minimum of layers' outputs."""
    return functools.reduce(lambda *pair: called(Minimum(name=name), pair), inputs)


@checked
def average(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the mean of layers' outputs, number by number."""
    return called(Average(name=name), inputs) if len(inputs) == 2 else add(inputs, name) / len(inputs)


@checked
def concatenate(inputs: Sequence[Symbol], axis: int = -1, name: str | None = None) -> Symbol:
    """Return layers' outputs joined along an axis."""
    return called(Concatenate(axis=axis, name=name), inputs)


def called(layer: LayerBuilder, inputs: Sequence[Symbol]) -> Symbol:
    """Call a layer on a list of symbolic tensors."""
    feature: Symbol = layer(list(inputs))
    return feature


@checked
def to_categorical(x: Any, num_classes: int | None = None) -> ndarray:
    """Convert classes (...) to one-hot rows (..., num_classes), float32, dropping a last axis of length 1.

    ``num_classes`` defaults to the largest class plus 1. Raises UserError for anything but classes.

    Examples:
        >>> from dsinga import nn
        >>> nn.to_categorical([0, 2], num_classes=3)
        array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
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
    """Set the seed of Python, of numpy, and of models made after this call."""
    check_whole("seed", seed, 0)
    FIRST_SEED[0] = seed
    random.seed(seed)
    np.random.seed(seed)


@with_types
def clear_session(free_memory: bool = True) -> None:
    """Do nothing, for programs written for Keras: there is no global state of models."""
