"""Python operators on symbolic tensors, ``+ - * / @ **`` and indexing, each a layer of the job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.layers.interface.layer import Shape

SIMPLE = {"ADD": "kAdd", "MULTIPLY": "kMultiply"}  # for sources of one shape


class HasOperators(ABC):
    """Base class of symbolic tensors that support Python's operators; subclasses make the layers."""

    __array_ufunc__ = None  # numpy then leaves operators of arrays and features to this class

    @abstractmethod
    def _binary(self, operator: str, other: Any, swapped: bool = False) -> Any:
        """Apply a kArithmetic operator; if swapped, ``other`` is the first operand."""

    def __add__(self, other: Any) -> Any:
        return self._binary("ADD", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._binary("SUBTRACT", other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("SUBTRACT", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._binary("MULTIPLY", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._binary("DIVIDE", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("DIVIDE", other, swapped=True)

    def __neg__(self) -> Any:
        return self._binary("MULTIPLY", -1.0)


class Operators(HasOperators):
    """Base class of symbols with operators that become layers of the job."""

    @property
    @abstractmethod
    def rows(self) -> Shape | None:
        """The shape of a row of the tensor, None if unknown."""

    @abstractmethod
    def operate(self, kind: str, type: str, sources: Sequence[Any], **fields: Any) -> Any:
        """Return the output of a new layer of this type with these sources."""

    def _binary(self, operator: str, other: Any, swapped: bool = False) -> Any:
        kind = operator.lower()
        if isinstance(other, Operators):
            is_simple = operator in SIMPLE and self.rows == other.rows is not None
            if is_simple:
                return self.operate(kind, SIMPLE[operator], [self, other])
            return self.operate(kind, "kArithmetic", [self, other], arithmetic_conf={"operator": operator})
        if operator == "MATMUL" or isinstance(other, bool) or not isinstance(other, Real):
            raise UserError(
                f"{self!r} is combined with {value_text(other)}; operators take features of layers and numbers; arrays "
                "are inputs, nn.Input, or params, as those of nn.Dense"
            )
        conf = {"operator": operator, "number": float(other), **({"swapped": True} if swapped else {})}
        return self.operate(kind, "kArithmetic", [self], arithmetic_conf=conf)

    def __matmul__(self, other: Any) -> Any:
        return self._binary("MATMUL", other)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, Operators):
            raise UserError(f"{self!r} ** a feature is not there; the exponent is a number")
        return self._binary("POWER", other)

    def __getitem__(self, key: Any) -> Any:
        items = [
            item.tolist() if isinstance(item, np.ndarray) else item
            for item in (key if isinstance(key, tuple) else (key,))
        ]
        first = items[0] if items else None
        if not (first is Ellipsis or first == slice(None)):
            raise UserError(
                f"{self!r} is indexed from its rows on, which stay: write x[:, 0], not x[{value_text(first)}]"
            )
        items = items if first is Ellipsis else items[1:]
        if all(item is Ellipsis or item == slice(None) for item in items):
            return self
        return self.operate("index", "kIndex", [self], index_conf={"index": ", ".join(map(self._item, items))})

    def _item(self, item: Any) -> str:
        if item is None or item is Ellipsis:
            return "new" if item is None else "..."
        if isinstance(item, int) and not isinstance(item, bool):
            return str(item)
        if isinstance(item, list) and item and all(type(number) is int for number in item):
            return str(item)
        parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
        if not isinstance(item, slice) or not all(part is None or isinstance(part, int) for part in parts):
            raise UserError(
                f"{self!r} is indexed by numbers, slices, a list of numbers, None and ..., not by {value_text(item)}"
            )
        texts = ["" if part is None else str(part) for part in parts]
        return ":".join(texts if item.step is not None else texts[:2])
