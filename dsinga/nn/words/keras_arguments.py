"""Checks arguments against Keras's, and suggests replacements from ``keras.toml`` for missing names.

Keras arguments are ignored if their values ask for what happens anyway.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar, get_type_hints

import numpy as np

from dsinga.base import arguments
from dsinga.base.arguments import F, Remedies, T, fail_for_name
from dsinga.base.arguments import missing_names as missing
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.extensions.extension import CALLBACKS
from dsinga.job.checks import iterate_messages
from dsinga.job.limits import out_of_range
from dsinga.job.message import Message
from dsinga.job.setting_arguments import explaining, meanings

P = ParamSpec("P")
M = TypeVar("M", bound=Message)
_FILE = Path(__file__).with_name("keras.toml")
OPTIMIZERS = Remedies(_FILE, "optimizers")
LOSS_NAMES = Remedies(_FILE, "loss_names")  # losses as compile names them
NAMES = ChainMap(Remedies(_FILE, "layers", "optimizers", "losses", "metrics", "pytorch", "others"), CALLBACKS)
ARGUMENTS = Remedies(_FILE, "arguments")  # by argument, and by "Function.argument" where it has several meanings
MODEL_ATTRIBUTES, LAYER_ATTRIBUTES = Remedies(_FILE, "model"), Remedies(_FILE, "layer")
STEP_METHODS = set("train_step test_step predict_step compute_loss compute_metrics make_train_function".split())

missing_names = functools.partial(missing, instead=NAMES)

_FLOAT32 = ("float32", np.float32, np.dtype("float32"), None)

# By argument, or by "function.argument" for functions that accept any name.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "dtype": _FLOAT32,
    "Input.dtype": (*_FLOAT32, "int32", "int64", np.int32, np.int64),  # codes are read as they are
    **dict.fromkeys(("center", "scale"), (True,)),
    "data_format": ("channels_first", None),
    "merge_mode": ("concat",),
    **dict.fromkeys(("GroupNormalization.axis", "fit.validation_freq"), (1,)),
    "Softmax.axis": (-1,),
    "dilation_rate": (1, (1,), (1, 1)),
    **dict.fromkeys(("unroll", "time_major", "ragged", "sparse", "stateful", "go_backwards"), (False,)),
    **dict.fromkeys(("Input.sparse", "Input.ragged", "return_state", "amsgrad", "approximate"), (False,)),
    **dict.fromkeys(("seed", "noise_shape", "activity_regularizer", "compile.weighted_metrics"), (None,)),
    "fit.verbose": (1, 2, "auto", True),  # 0 means progress=False
    **dict.fromkeys(("evaluate.verbose", "predict.verbose"), (0, 1, 2, "auto", False, True)),  # they show nothing
    "fit.initial_epoch": (0,),
    "fit.validation_batch_size": (None,),
    **dict.fromkeys(("evaluate.steps", "evaluate.callbacks", "predict.steps", "predict.callbacks"), (None,)),
    "compile.run_eagerly": (False, None),
    "compile.steps_per_execution": (1, None),
}


def without_defaults(function: str, signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Drop Keras arguments that would change nothing from a call's arguments."""
    takes_any = any(known.kind is known.VAR_KEYWORD for known in signature.parameters.values())
    left = {}
    for name, value in given.items():
        keys = [f"{function}.{name}"] if takes_any else [f"{function}.{name}", name]
        values = next((VALUES[key] for key in keys if key in VALUES), ())
        if name in signature.parameters or not any(_is_same(value, known) for known in values):
            left[name] = value
    if function == "fit" and _is_same(left.get("verbose"), 0) | _is_same(left.get("verbose"), False):
        del left["verbose"]
        left.setdefault("progress", False)
    return left


def _is_same(value: Any, known: Any) -> bool:
    return type(value) is type(known) and value == known


check_names = functools.partial(arguments.check_names, instead=ARGUMENTS)


def bind(function: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, without Keras arguments that would change nothing."""
    return arguments.bind(function, signature, args, without_defaults(function, signature, kwargs), ARGUMENTS)


def checked(function: F) -> F:
    """Decorate a function of ``nn`` to check argument names and drop Keras arguments that change nothing."""
    signature = inspect.signature(function)

    @public
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = without_defaults(function.__name__, signature, kwargs)
        arguments.bind(function.__name__, signature, args, kwargs, ARGUMENTS)
        return function(*args, **kwargs)

    shown = arguments.signature_with_types(function)
    if options := re.search(r"Unpack\[(\w+Options)\]", str(signature)):
        more = keyword_parameters(function.__globals__[options[1]], default=None)
        shown = arguments.extended_signature(function, more.values(), shown.return_annotation)
    call.__signature__ = shown  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def keyword_parameters(fields: Any, default: Any, defaults: Mapping[str, Any] = {}) -> dict[str, inspect.Parameter]:
    """Convert a TypedDict's fields to keyword-only parameters, with ``defaults`` or the common ``default``."""
    return {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, default),
            annotation=hint,
        )
        for name, hint in get_type_hints(fields).items()
    }


def checked_class(cls: type[T]) -> type[T]:
    """Decorate a class so that its constructor checks argument names."""
    return arguments.check_settings(cls, instead=ARGUMENTS)


class Name(str):
    """A name of Keras for an object, such as a loss, that ``compile`` accepts; it computes nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise UserError, because a name has no function to call."""
        raise UserError(f"{self!s} is a name for compile and layers, no function of arrays; {COMPUTED}")

    def __getattr__(self, name: str) -> NoReturn:
        fail_for_name(f"the name {self!s}", name, (), {} if name.startswith("__") else {name: COMPUTED})


COMPUTED = "model.evaluate(x, y) computes losses and metrics of a compiled model; scikit-learn's functions take arrays"

# The arguments of optimizers and schedules that set the fields of a job, where the names differ.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "delta": ("epsilon",),
    "beta1": ("beta_1",),
    "beta2": ("beta_2",),
    "decay": ("ema_momentum",),
    "every": ("ema_every",),
    "base_lr": ("learning_rate", "initial_learning_rate", "max_lr", "schedules"),
    "change_freq": ("decay_steps", "first_decay_steps", "total_steps"),
    "final_lr": ("end_learning_rate",),
}


def check_fields(function: str, message: Message, arguments: Collection[str]) -> None:
    """Raise UserError, naming the argument, for an out-of-range number in a message or its nested ones."""
    for _, inner in iterate_messages(message):
        for field, _, value, allowed in out_of_range(inner):
            name = next((name for name in FIELDS.get(field, ()) if name in arguments), field)
            raise UserError(f"{function}: {name} {allowed.fault(value)}")


def configures(common: Callable[..., M], function: Callable[P, M], aliases: Mapping[str, str] = {}) -> Callable[P, M]:
    """Decorate a function that returns a configuration, such as nn.Adam, to check argument names and ranges.

    Its signature shows the arguments of ``common``, which it calls. ``aliases`` maps Keras's names to argument names.
    """
    own, shared = inspect.signature(function).parameters, arguments.signature_with_types(common)
    more = [known for known in shared.parameters.values() if known.kind is known.KEYWORD_ONLY and known.name not in own]
    signature = arguments.extended_signature(function, more, shared.return_annotation)

    @public
    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> M:
        given = {aliases.get(name, name): value for name, value in kwargs.items() if name not in aliases or value}
        message = function(**bind(function.__name__, signature, args, given))  # type: ignore[call-arg]
        check_fields(function.__name__, message, signature.parameters)
        return message

    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = explaining(function, signature.parameters, meanings(common))
    return make
