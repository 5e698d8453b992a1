"""Blocks of nets for fields: convolutions that keep the size of a field, with padding by axis, and normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.nn.writing.symbol import Symbol

Normalisation = Literal["batch", "group", "none"]
Padding = str | tuple[str, str]
NORMALISATIONS = ("batch", "group", "none")
GROUPS = 8  # of channels, at most


Statistics = Mapping[str, Any] | None  # {"mean": (C,) or (C, H, W), "std": likewise}, arguments of nn.Normalization


def fields_input(shape: Sequence[int], statistics: Statistics) -> tuple[Symbol, Symbol]:
    """Return the symbol of records of a shape, and that of the records normalised by ``statistics``, if there are."""
    fields = nn.Input(tuple(shape), name="data")
    return fields, fields if statistics is None else nn.Normalization(**statistics, name="normalised")(fields)


def fields_output(x: Symbol, channels: int, statistics: Statistics) -> Symbol:
    """Return a linear 1 x 1 convolution of x; with ``statistics`` its results are brought into the data's units."""
    if statistics is None:
        return nn.Conv2D(channels, 1, name="output")(x)
    return nn.Normalization(**statistics, invert=True, name="output")(nn.Conv2D(channels, 1, name="scores")(x))


@dataclass(frozen=True)
class FieldLayers:
    """Makes convolutions that keep the size of a field, and the normalisation after them.

    ``padding`` says what lies around a field: "zero", "edge", "reflect" or "periodic", for both axes or (rows,
    columns). ``normalisation`` is "batch", "group" (of at most eight equal groups of channels) or "none".
    """

    padding: Padding
    normalisation: Normalisation

    def __post_init__(self) -> None:
        if self.normalisation not in NORMALISATIONS:
            raise UserError(f'normalisation is "batch", "group" or "none", not {self.normalisation!r}')

    def convolve(self, name: str, x: Symbol, filters: int, kernel: int = 3, bias: bool | None = None) -> Symbol:
        """Return a convolution whose kernel has an odd size; it has a bias where no normalisation follows."""
        bias = self.normalisation == "none" if bias is None else bias
        settings: dict[str, Any] = {"kernel_initializer": "he_normal", "use_bias": bias, "name": name}
        if self.padding == "zero" or kernel == 1:
            return nn.Conv2D(filters, kernel, padding=kernel // 2, **settings)(x)
        padded = nn.Padding2D(kernel // 2, self.padding, name=f"{name}_pad")(x)
        return nn.Conv2D(filters, kernel, **settings)(padded)

    def normalise(self, name: str, x: Symbol, channels: int) -> Symbol:
        """Return x normalised, x itself without normalisation."""
        if self.normalisation == "batch":
            return nn.BatchNormalization(name=name)(x)
        if self.normalisation == "group":
            return nn.GroupNormalization(math.gcd(channels, GROUPS), name=name)(x)
        return x
