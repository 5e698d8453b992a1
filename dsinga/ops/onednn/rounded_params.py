"""Keeps bfloat16 copies of params from an update to the next step, which then rounds no weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dsinga.ops.layout import contiguous
from dsinga.ops.onednn.casting import cast_contiguous, cast_into
from dsinga.ops.onednn.library import BFLOAT16
from dsinga.ops.types import Array


class RoundedParams:
    """bfloat16 copies of params, known by their float32 arrays. Use an instance in one thread."""

    def __init__(self) -> None:
        self._params: dict[int, Array] = {}
        self._copies: dict[int, Array] = {}

    @contextmanager
    def held(self, params: Iterable[Array]) -> Iterator[None]:
        """Keep copies of ``params`` in the context, in which only updates with :meth:`refresh` may change them."""
        self._params = {id(param): param for param in params}
        try:
            yield
        finally:
            self._params, self._copies = {}, {}

    def of(self, param: Array) -> Array:
        """Return a param, or another matrix, rounded to bfloat16, in C order."""
        copy = self._copies.get(id(param))
        if copy is None:
            copy = cast_contiguous(contiguous(param), BFLOAT16)
            if id(param) in self._params:
                self._copies[id(param)] = copy
        return copy

    def refresh(self, param: Array, start: int = 0) -> Callable[[slice], None] | None:
        """Return a function that rounds parts of a param, given their places after ``start``; None without a copy."""
        copy = self._copies.get(id(param))
        if copy is None:
            return None
        value, rounded = param.reshape(-1)[start:], copy.reshape(-1)[start:]
        return lambda part: cast_into(value[part], rounded[part])
