"""Checks a user's function before training: finds its library, shape and gradient, and whether rows mix."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from dsinga.addons.functions.libraries import Function, LibraryFunction, NumpyFunction, find_library
from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.job.functions import value_of
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.layer import Shape

ROWS = 4  # the rows of a batch of trial
KEPT = 4  # checked functions that no model has, since a model that is being made asks for each several times
STEPS = {np.dtype(np.float64): (1e-6, 1e-4), np.dtype(np.float32): (1e-2, 5e-2)}  # step, tolerance of a difference
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Probed:
    """A user's function with its gradient, and the shape of a returned row."""

    function: LibraryFunction
    row_shape: Shape


_in_use: WeakValueDictionary[Any, Probed] = WeakValueDictionary()


@functools.lru_cache(maxsize=KEPT)
def probe(
    function: Function, rows: tuple[Shape, ...], labels: int | None = None, params: tuple[Shape, ...] = ()
) -> Probed:
    """Check a user's function on random rows; return the function with its gradient and the shape of a row.

    ``labels`` is the index of the labels among arguments: numbers, or else classes 0 and 1. A loss that is a mean over
    rows is called on each row. Arrays of the shapes ``params`` precede the rows.
    """
    key = function, rows, labels, params
    if (probed := _in_use.get(key)) is not None:
        return probed
    random = np.random.default_rng(0)
    shapes = [*params, *((ROWS, *shape) for shape in rows)]
    arrays: list[np.ndarray] = [random.uniform(0.1, 0.9, shape).astype(np.float32) for shape in shapes]
    needs = [index != labels for index in range(len(arrays))]
    found = _find(function, arrays, needs, labels, len(params))
    value = found.value(arrays)
    if value.dtype.kind != "f":
        raise UserError(f"the function {title_of(function)} returns {value.dtype}; return floats, as float32")
    is_mean = _check_rows(function, found, arrays, value, labels, len(params))
    if is_mean and not isinstance(found, NumpyFunction):
        found = found.row_by_row()
        value = found.value(arrays)
    if not isinstance(found, NumpyFunction):
        _check_gradient(function, found, arrays, needs, is_loss=labels is not None)
    _in_use[key] = probed = Probed(found, value.shape[1:])
    return probed


def title_of(function: Function) -> str:
    """Return the name of a function in messages."""
    return getattr(function, "title", "") or value_text(function)


def _find(
    function: Function, arrays: list[np.ndarray], needs: Sequence[bool], labels: int | None, params: int
) -> LibraryFunction:
    """Find a function's library by calling it; if it rejects labels, replace them by classes in ``arrays``."""
    try:
        return find_library(function, arrays, needs)
    except UserError:
        raise
    except Exception as error:
        first, line = error, _line(error)
    if labels is None:
        given = ", ".join(f"{array.shape} {array.dtype}" for array in arrays[params:])
        raise UserError(f"the function {title_of(function)} fails for rows {given}: {line}") from first
    numbers = arrays[labels]
    arrays[labels] = (np.arange(numbers.size) % 2).reshape(numbers.shape)
    try:
        return find_library(function, arrays, needs)
    except UserError:
        raise
    except Exception as error:
        more = "" if _line(error) == line else f"; for labels that are classes, {arrays[labels].dtype}: {_line(error)}"
    predictions = ", ".join(str(array.shape) for index, array in enumerate(arrays) if index != labels)
    raise UserError(
        f"the function {title_of(function)} fails for labels {numbers.shape}, predictions {predictions}: {line}{more}"
    ) from first


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _check_rows(
    function: Function,
    found: LibraryFunction,
    arrays: Sequence[np.ndarray],
    value: np.ndarray,
    labels: int | None,
    params: int,
) -> bool:
    fixed, of_rows = arrays[:params], arrays[params:]
    ones = [found.value([*fixed, *(array[row : row + 1] for array in of_rows)]) for row in range(ROWS)]
    if labels is not None and value.ndim == 0:
        alone = np.array(ones, np.float64).ravel()
        if _is_near(value, alone.mean()):
            return True
        if _is_near(value, alone.sum()):
            raise UserError(
                f"the function {title_of(function)} adds up the losses of the rows of a batch; return a loss for each "
                "row, as by axis=-1, or the mean"
            )
    elif value.ndim and len(value) == ROWS:
        if all(one.shape == (1, *value.shape[1:]) for one in ones) and _is_near(value, np.concatenate(ones)):
            return False
    else:
        raise UserError(
            f"the function {title_of(function)} returns {shape_text(value.shape)} for {ROWS} rows; return an array "
            "whose first axis is that of the rows"
        )
    if not _is_near(value_of(found.function, arrays), value):  # not compiled: JAX keeps random numbers of numpy
        raise UserError(
            f"the function {title_of(function)} gives other numbers when it is called again for the same rows; give "
            "random numbers as an input of the model, or put nn.Dropout before"
        )
    raise UserError(
        f"the function {title_of(function)} mixes the rows of a batch: what it returns for a row depends on the "
        "others, so that workers could not share a batch; compute each row from its own numbers"
    )


def _is_near(value: Any, other: Any) -> bool:
    return bool(np.allclose(value, other, 1e-3, 1e-4, equal_nan=True))


def _check_gradient(
    function: Function, found: LibraryFunction, arrays: Sequence[np.ndarray], needs: Sequence[bool], is_loss: bool
) -> None:
    """Log how far the gradient is from finite differences, in float64 if the function accepts it.

    Raises UserError for a loss with zero gradient and nonzero differences: it would train nothing.
    """
    what = f"the gradient of {title_of(function)} by {found.library}"
    try:
        with np.errstate(all="ignore"):
            wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
            error, is_cut = _gradient_error(found, wide, needs)
    except Exception:  # such as for a PyTorch module with float32 params
        error, is_cut = _gradient_error(found, arrays, needs)
    if is_loss and is_cut:
        raise UserError(
            f"{what} is 0 everywhere, so that it would train nothing: it returns what is cut off from its arguments, "
            "as by detach(), no_grad() or stop_gradient(); leave that out, or write it as a layer with a gradient of "
            "its own (docs/howto/own-code.md)"
        )
    if not np.isfinite(error):
        _log.warning("%s could not be checked: it is not finite for numbers between 0.1 and 0.9", what)
    elif error > 1:
        _log.warning(
            "%s differs from finite differences: it cuts off gradients, rounds or jumps there; correct it unless that "
            "is meant", what,
        )  # fmt: skip
    else:
        _log.info("%s agrees with finite differences for %d rows", what, ROWS)


def _gradient_error(found: LibraryFunction, arrays: Sequence[np.ndarray], needs: Sequence[bool]) -> tuple[float, bool]:
    """Return the largest error of derivatives in a random direction of each argument, as a share of the bound.

    Also return whether all gradients are 0 although finite differences are not.
    """
    random = np.random.default_rng(1)
    computed = found.compute(arrays, needs)
    weights = random.uniform(0.5, 1.5, computed.value.shape).astype(computed.value.dtype)
    step, tolerance = STEPS[min(computed.value.dtype, *(a.dtype for a in arrays if a.dtype.kind == "f"))]
    worst, is_cut = 0.0, True
    for index, (array, gradient) in enumerate(zip(arrays, computed.pull(weights), strict=True)):
        if gradient is None or array.dtype.kind != "f":
            continue
        direction = random.standard_normal(array.shape).astype(array.dtype)
        ends = []
        for sign in (1, -1):
            moved = [a + sign * step * direction if k == index else a for k, a in enumerate(arrays)]
            ends.append(
                float((found.value([a.astype(b.dtype) for a, b in zip(moved, arrays, strict=True)]) * weights).sum())
            )
        slope, ours = (ends[0] - ends[1]) / (2 * step), float((gradient * direction).sum())
        worst = max(worst, abs(slope - ours) / (tolerance * max(abs(slope), abs(ours), 1e-2)))
        if not np.isfinite(slope + ours):
            return float("nan"), False
        is_cut = is_cut and not gradient.any()
    return worst, is_cut and worst > 1
