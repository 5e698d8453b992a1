"""The constants of an ONNX graph while it becomes layers, and how much may be made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.addons.onnx.naming import is_made_up
from dsinga.base.errors import UserError
from dsinga.nn.writing.reshaping import NoLayer

LARGEST = 1 << 26  # numbers that a node may make out of few, as ConstantOfShape and Tile do
MOST_INTEGERS = 1 << 12  # of a shape, or of sizes of parts


@dataclass
class Room:
    """What may still be made of the numbers of a file, so that a small one neither fills the memory nor takes hours.

    Attributes:
        bytes: of constants that are computed, and of params.
        numbers: that operators of constants read and write.
    """

    bytes: float
    numbers: float

    def take(self, size: float, numbers: float = 0) -> None:
        """Take bytes and numbers of what is left. Raises UserError where there are fewer."""
        self.bytes -= size
        self.numbers -= numbers
        if not (self.bytes >= 0 and self.numbers >= 0):  # or they are no numbers
            raise UserError("the constants of the net grow without bounds; export it with those that it needs")


@dataclass(frozen=True)
class Constant:
    """A tensor that is the same at each call.

    Attributes:
        array: its numbers.
        name: the name of the initializer that has these numbers, maybe in another shape; "" for computed ones.
        made: of numbers of params in another order, or some of them: the node, its operands, and which output it is.
        kind: what the file says of an initializer: PARAMETER, BUFFER, FOLDED if the exporter computed it; else "".
        is_param: whether it is a param, which trains: the file says so, or has a name that no exporter made up for it,
            and it is no mask of zeros and ones, and no bound of -infinity.
    """

    array: np.ndarray
    name: str = ""
    made: tuple[Any, Sequence[Any], int] | None = None
    kind: str = ""
    is_param: bool = field(init=False)

    def __post_init__(self) -> None:
        is_known = self.made is not None or self.kind == "PARAMETER"
        may_train = is_known or (not self.kind and not is_made_up(self.name) and not is_mask(self.array))
        may_train = may_train and not is_bound(self.array)
        object.__setattr__(self, "is_param", may_train and self.array.dtype.kind == "f")

    def computed(self, leaf: Callable[[Constant], Any], apply: Callable[[Any, Sequence[Any], int], Any]) -> Any:
        """Return what ``leaf`` makes of a param or, of what is made of params, ``apply`` of a node and its operands."""
        results: dict[int, Any] = {}
        pending = [self]
        while pending:
            x = pending[-1]
            params = [each for each in (x.made[1] if x.made else ()) if each is not None and each.is_param]
            if missing := [each for each in params if id(each) not in results]:
                pending += missing
                continue
            pending.pop()
            if x.made is None:
                results[id(x)] = leaf(x)
            else:
                node, operands, output = x.made
                results[id(x)] = apply(node, [results.get(id(each), each) for each in operands], output)
        return results[id(self)]

    def params(self) -> dict[str, Constant]:
        """Return the params that it is made of, by name."""
        found: dict[str, Constant] = {}
        self.computed(lambda x: found.setdefault(x.name, x), lambda *_: None)
        return found

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its numbers."""
        return self.array.dtype


def is_mask(array: np.ndarray) -> bool:
    """Whether numbers are zeros and ones, of both some, as in the mask of a weight."""
    return (
        array.dtype.kind == "f"
        and array.size > 1
        and array.flat[0] in (0, 1)
        and bool(np.isin(array, (0, 1)).all() and np.ptp(array))
    )


def is_bound(array: np.ndarray) -> bool:
    """Whether numbers have -infinity, as scores that a softmax makes 0, which no gradient moves."""
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isneginf(without_repeats(array).min()))


def spread(shapes: Sequence[Sequence[int]]) -> float:
    """Return how many numbers arrays of these shapes give together, with their axes of length 1 repeated."""
    return math.prod(max(sizes) for sizes in itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1))


def without_repeats(array: np.ndarray) -> np.ndarray:
    """Return an array with length 1 along the axes that repeat one part, as those of Expand."""
    return array[tuple(slice(0, 1 if stride == 0 else None) for stride in array.strides)]


def is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same shape and numbers."""
    if a.shape == b.shape and a.strides == b.strides:
        a, b = without_repeats(a), without_repeats(b)
    return np.array_equal(a, b, equal_nan=True)


def integers(x: Any, what: str) -> Any:
    """Return the integers of a constant, or of an attribute, as a shape or axes; None for none.

    Raises NoLayer for what layers compute.
    """
    if x is None or isinstance(x, (list, int)):
        return x
    if not isinstance(x, Constant):
        raise NoLayer(f"whose {what} depends on a batch")
    if x.array.size > MOST_INTEGERS:
        raise NoLayer(f"whose {what} has {x.array.size:,} numbers")
    return [int(number) for number in np.atleast_1d(x.array)]


def decimal(number: Any) -> float:
    """Return the shortest decimal number that is this float32, as 1e-05 of 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def number_in(x: Any, default: Any = None) -> Any:
    """Return the number that an input or an attribute of an operator is, ``default`` where it is left out."""
    if isinstance(x, Constant):
        return decimal(x.array.reshape(()))
    if isinstance(x, (int, float)) or x is None:
        return default if x is None else x
    raise NoLayer("with a number that depends on a batch")
