"""Values of Keras's arguments that mean what happens here anyway: they are taken, and change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

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
    "evaluate.return_dict": (True, False),
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
