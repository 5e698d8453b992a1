"""Arguments of the functions that make layers and optimizers: a misspelt name is an error with the nearest one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dsinga.errors import UserError
from dsinga.nn.feature import Feature
from dsinga.nn.symbol import LayerBuilder
from dsinga.registry import nearest

F = TypeVar("F", bound=Callable[..., Any])

COMMON: Mapping[str, Any] = {
    "name": None,
    "param": None,
    "lr_scale": None,
    "wd_scale": None,
    "trainable": True,
    "partition_dim": None,
    "location": None,
    "include": None,
    "exclude": None,
}
"""Arguments of every layer: name; ``nn.Param(...)`` for each param; learning rate and weight decay scales, a number for
all params or one for each; ``trainable=False``, which keeps the values of its params (static); the dimension on which
the layer is cut, or the worker that computes it; its phases."""

# Arguments of Keras that have no counterpart, with what to write instead.
INSTEAD = {
    "kernel_regularizer": "give the optimizer weight_decay, and the layer wd_scale",
    "bias_regularizer": "give the optimizer weight_decay, and the layer wd_scale",
    "activity_regularizer": "there is none",
    "kernel_constraint": "there is none",
    "bias_constraint": "there is none",
    "data_format": 'images are channels first here: np.moveaxis(x, -1, 1) makes them so from "channels_last"',
    "dilation_rate": "there is none",
    "groups": "there is none",
    "input_shape": "begin with nn.Input(shape=...)",
    "input_dim": "begin with nn.Input(shape=...)",
    "batch_input_shape": "begin with nn.Input(shape=...)",
    "dtype": "params are float32",
    "go_backwards": "use nn.Bidirectional",
    "stateful": "use carry=True",
    "seed": "the job's seed determines all random numbers",
    "clipnorm": "use clip_norm",
    "clipvalue": "use clip_value",
    "verbose": "use progress=False to show nothing",
    "shuffle": "training always shuffles the records",
    "class_weight": "give sample_weight=weights[y]",
    "initial_epoch": "a second fit goes on from the params",
    "validation_split": "give validation_data=(x, y)",
    "steps_per_epoch": "an epoch reads all records once; use train_steps",
}


def check_names(
    function: str, known: Sequence[str], given: Mapping[str, Any], instead: Mapping[str, str] = INSTEAD
) -> None:
    """Raise UserError, with the nearest name or what to do instead, for the first name that is not ``known``."""
    for name in given:
        if name in known:
            continue
        remedy = nearest(name, known) or f"; it has {', '.join(known[:12])}{', ...' * (len(known) > 12)}"
        if name in instead:
            remedy = f"; {instead[name]}"
        raise UserError(f"{function} has no argument {name!r}{remedy}")


def values_by_name(what: str, given: Mapping[str, Any], names: Sequence[str], kind: str) -> list[Any]:
    """Return the values of a dict in the order of ``names``, those of all inputs or outputs, as ``kind`` says.

    Raises UserError for another name, with the nearest, and for a missing one.
    """
    for key in given:
        if key not in names:
            hint = nearest(str(key), names) or f"; the {kind}s are {', '.join(map(repr, names))}"
            raise UserError(f"{what} names {key!r}, which is no {kind}{hint}")
    missing = [name for name in names if name not in given]
    if missing:
        raise UserError(f"{what} has nothing for the {kind} {missing[0]!r}")
    return [given[name] for name in names]


def bind(
    function: str,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    instead: Mapping[str, str] = INSTEAD,
) -> dict[str, Any]:
    """Return the arguments by name; raise UserError for an unknown, a missing or a surplus one.

    A function that takes any name checks them itself. ``instead`` says what to write in place of unknown names.
    """
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        check_names(function, [name for name in signature.parameters if name != "self"], kwargs, instead)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise UserError(f"{function}: {error}; it is called as {function}{signature}") from None


def checked(function: F, prefix: str = "", instead: Mapping[str, str] = INSTEAD) -> F:
    """Return the function with arguments that are checked by name; messages have ``prefix`` before the function's."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bind(f"{prefix}{function.__name__}", signature, args, kwargs, instead)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def layer(function: Callable[..., Callable[[Any], Feature]]) -> Callable[..., LayerBuilder]:
    """Return the function as one that makes a layer: it takes the arguments of every layer, too.

    ``function`` returns what writes the layer (:class:`LayerBuilder`).
    """
    own = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    common = [inspect.Parameter(name, keyword, default=default) for name, default in COMMON.items()]
    signature = own.replace(parameters=[*own.parameters.values(), *common], return_annotation="LayerBuilder")

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> LayerBuilder:
        settings = bind(function.__name__, signature, args, kwargs)
        arguments = {name: value for name, value in settings.items() if name not in COMMON}
        again = functools.partial(make, *args, **kwargs)
        return LayerBuilder(function.__name__, function(**arguments), settings, again)

    make.__signature__ = signature  # type: ignore[attr-defined]
    return make
