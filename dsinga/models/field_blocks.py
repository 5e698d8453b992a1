"""Blocks of nets for fields: convolutions that keep the size of a field, with padding by axis, and normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from dsinga import nn
from dsinga.errors import UserError
from dsinga.nn.symbol import Symbol

Normalisation = Literal["batch", "group", "none"]
Padding = str | tuple[str, str]
NORMALISATIONS = ("batch", "group", "none")
GROUPS = 8  # of channels, at most


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
