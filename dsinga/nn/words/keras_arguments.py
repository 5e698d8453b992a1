"""Names and arguments of Keras: what to write instead of those that ``nn`` lacks, the tables of ``keras.toml``.

Values of arguments that mean what happens here anyway are taken, and change nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dsinga.base import arguments
from dsinga.base.arguments import F, Remedies, T
from dsinga.base.arguments import missing_names as missing
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.extensions.extension import CALLBACKS
from dsinga.job.checks import iterate_messages
from dsinga.job.limits import out_of_range
from dsinga.job.message import Message

_FILE = Path(__file__).with_name("keras.toml")
OPTIMIZERS = Remedies(_FILE, "optimizers")
LOSS_NAMES = Remedies(_FILE, "loss_names")  # losses as compile names them
NAMES = ChainMap(Remedies(_FILE, "layers", "optimizers", "losses", "metrics", "pytorch", "others"), CALLBACKS)
ARGUMENTS = Remedies(_FILE, "arguments")  # by argument, and by "Function.argument" where it has several meanings
MODEL_ATTRIBUTES, LAYER_ATTRIBUTES = Remedies(_FILE, "model"), Remedies(_FILE, "layer")
STEP_METHODS = set("train_step test_step predict_step compute_loss compute_metrics make_train_function".split())

missing_names = functools.partial(missing, instead=NAMES)

_FLOAT32 = ("float32", np.float32, np.dtype("float32"), None)

# By argument, and by "function.argument", the only way for functions that take any name.
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
    "fit.verbose": (1, 2, "auto", True),  # 0 is progress=False
    **dict.fromkeys(("evaluate.verbose", "predict.verbose"), (0, 1, 2, "auto", False, True)),  # they show nothing
    "fit.initial_epoch": (0,),
    "fit.validation_batch_size": (None,),
    **dict.fromkeys(("evaluate.steps", "evaluate.callbacks", "predict.steps", "predict.callbacks"), (None,)),
    "compile.run_eagerly": (False, None),
    "compile.steps_per_execution": (1, None),
}


def without_defaults(function: str, signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call without those that it does not have, and that mean what happens anyway."""
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
    """Return the arguments by name, as :func:`dsinga.base.arguments.bind`, without Keras's that change nothing."""
    return arguments.bind(function, signature, args, without_defaults(function, signature, kwargs), ARGUMENTS)


def checked(function: F) -> F:
    """Return the function with arguments that are checked by name, without Keras's that change nothing."""
    signature = inspect.signature(function)

    @public
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = without_defaults(function.__name__, signature, kwargs)
        arguments.bind(function.__name__, signature, args, kwargs, ARGUMENTS)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def checked_class(cls: type[T]) -> type[T]:
    """Return the class with a constructor whose arguments are checked by name."""
    return arguments.check_settings(cls, instead=ARGUMENTS)


def refuse_subclasses(function: F) -> F:
    """Let a class that names a function as its base raise UserError; return the function."""

    def fail(bases: tuple[Any, ...]) -> NoReturn:
        raise UserError(
            f"nn.{function.__name__} is a function, which no class can inherit; a layer of your own is a subclass of "
            "nn.Layer; updaters and schedules are classes registered by dsinga.register (docs/extending.md)"
        )

    function.__mro_entries__ = fail  # type: ignore[attr-defined]
    return function


# The arguments of optimizers and schedules by the fields of a job that they set, where the names differ.
FIELDS = {"delta": "epsilon", "decay": "ema_momentum", "every": "ema_every"}


def check_fields(function: str, message: Message, names: Mapping[str, str] = FIELDS) -> None:
    """Raise UserError for a number in a message, or one within it, that is out of its range, by the argument's name."""
    for _, inner in iterate_messages(message):
        for field, _, value, allowed in out_of_range(inner):
            raise UserError(f"{function}: {names.get(field, field)} {allowed.fault(value)}")


def extended(
    function: Callable[..., Mapping[str, Any]],
    common: Mapping[str, inspect.Parameter],
    returns: Callable[..., Any],
    finish: Callable[..., Mapping[str, Any]] = dict,
) -> Any:
    """Return a function that takes ``common`` arguments, too, and ``returns`` a message of the fields of both.

    ``function`` returns the fields of its own arguments, ``finish`` those of the common ones.
    """
    signature = arguments.extended_signature(function, common.values(), returns.__name__)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = bind(function.__name__, signature, args, kwargs)
        shared = {name: given.pop(name) for name in common if name in given}
        fields = function(**given)
        for name in fields.keys() & shared.keys():
            raise UserError(f"{function.__name__}: other arguments say what {name} is; leave {name} out")
        message = returns(**{**finish(**shared), **fields})
        check_fields(function.__name__, message, FIELDS | {"base_lr": next(iter(signature.parameters))})
        return message

    make.__signature__ = signature  # type: ignore[attr-defined]
    return refuse_subclasses(make)
