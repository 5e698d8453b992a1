"""The constants of an ONNX graph during the import, and how much may be computed from them."""

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
    """Limits the memory and work of constants computed from a file, so that a small file cannot exhaust them.

    Attributes:
        bytes: of computed constants, and of params.
        numbers: that operators of constants read and write.
    """

    bytes: float
    numbers: float

    def take(self, size: float, numbers: float = 0) -> None:
        """Count bytes and numbers towards the limit, and raise UserError beyond it."""
        self.bytes -= size
        self.numbers -= numbers
        if not (self.bytes >= 0 and self.numbers >= 0):  # or they are no numbers
            raise UserError("the constants of the net grow without bounds; export it with those that it needs")


@dataclass(frozen=True)
class Constant:
    """A constant tensor of an ONNX graph, with the params that it comes from.

    Attributes:
        array: its numbers.
        name: the initializer with these numbers, maybe in another shape; "" for computed ones.
        made: for rearranged or selected numbers of params: the node, its operands, and the output's number.
        kind: the file's kind of initializer: PARAMETER, BUFFER, FOLDED if the exporter computed it; else "".
        is_param: whether it trains: the file says so, or its name is no exporter's, and it is no mask of 0 and 1, and
            no bound of -infinity.
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
        """Compute from a constant's params: ``leaf`` of each param, then ``apply`` of each node and its operands."""
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
        """Return the params that the constant is computed from, by name."""
        found: dict[str, Constant] = {}
        self.computed(lambda x: found.setdefault(x.name, x), lambda *_: None)
        return found

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its numbers."""
        return self.array.dtype


def is_mask(array: np.ndarray) -> bool:
    """Whether an array is a mask of 0 and 1, with some of each."""
    return (
        array.dtype.kind == "f"
        and array.size > 1
        and array.flat[0] in (0, 1)
        and bool(np.isin(array, (0, 1)).all() and np.ptp(array))
    )


def is_bound(array: np.ndarray) -> bool:
    """Whether an array has -infinity, such as the scores of hidden keys before a softmax."""
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isneginf(without_repeats(array).min()))


def spread(shapes: Sequence[Sequence[int]]) -> float:
    """Return how many numbers arrays of these shapes have when broadcast together."""
    return math.prod(max(sizes) for sizes in itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1))


def without_repeats(array: np.ndarray) -> np.ndarray:
    """Shorten axes that repeat one part, such as Expand's, to length 1."""
    return array[tuple(slice(0, 1 if stride == 0 else None) for stride in array.strides)]


def is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same shape and numbers."""
    if a.shape == b.shape and a.strides == b.strides:
        a, b = without_repeats(a), without_repeats(b)
    return np.array_equal(a, b, equal_nan=True)


def integers(x: Any, what: str) -> Any:
    """Return the integers of a constant or attribute, as a shape or axes; or None."""
    if x is None or isinstance(x, (list, int)):
        return x
    if not isinstance(x, Constant):
        raise NoLayer(f"whose {what} depends on a batch")
    if x.array.size > MOST_INTEGERS:
        raise NoLayer(f"whose {what} has {x.array.size:,} numbers")
    return [int(number) for number in np.atleast_1d(x.array)]


def decimal(number: Any) -> float:
    """Return the shortest decimal number of this float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def number_in(x: Any, default: Any = None) -> Any:
    """Return an input's or attribute's number; ``default`` if it is missing."""
    if isinstance(x, Constant):
        return decimal(x.array.reshape(()))
    if isinstance(x, (int, float)) or x is None:
        return default if x is None else x
    raise NoLayer("with a number that depends on a batch")
