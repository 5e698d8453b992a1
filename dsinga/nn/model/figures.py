"""The figures that ``evaluate`` of a model returns, which read as a dict and unpack as Keras's list."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsinga.base.arguments import is_at, is_whole


class Figures(dict[str, float]):
    """The loss and the metrics of an evaluation by name; ``loss, accuracy = figures`` takes their values.

    It is a dict: loops go over names, as ``dict(figures)`` and ``in`` do. An assignment to several variables, for which
    names are of no use, and whole numbers as keys, as ``figures[1]``, get the values in the order of Keras: the loss,
    then the metrics that ``compile`` was given, without these all that there are.

    Args:
        figures: the figures by name.
        metrics: the names of the metrics of ``compile`` that are among them.
    """

    def __init__(self, figures: Mapping[str, float], metrics: Sequence[str] = ()):
        super().__init__(figures)
        others = metrics or [name for name in figures if name != "loss"]
        self._values = [figures[name] for name in ("loss", *others) if name in figures]

    def __iter__(self) -> Iterator[Any]:
        is_unpacked = is_at(sys._getframe(1), "UNPACK_SEQUENCE", "UNPACK_EX")
        return iter(self._values) if is_unpacked else super().__iter__()

    def __missing__(self, name: Any) -> float:
        if is_whole(name, 0) and name < len(self._values):
            return self._values[name]
        raise KeyError(name)
