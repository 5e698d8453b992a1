"""Shares the params of a layer among all models that contain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsinga.nn.writing.symbol import LayerBuilder


@dataclass(frozen=True)
class SharedParams:
    """The params of a model's layers, which other models may share.

    Attributes:
        owners: layers, with the names of their params in order; empty until all shapes are known.
        are_handed_out: whether the layers have the params that were set.
    """

    owners: Sequence[tuple[LayerBuilder, Sequence[str]]] = ()
    are_handed_out: bool = True

    def newest(self, own: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
        """Return the newest params by name: the layers' values, or else the model's own, or None."""
        values = dict(own or {})
        for builder, names in self.owners:
            for name, value in zip(names, builder.values or (), strict=False):
                if value is not None:
                    values[name] = value
        return values or None if own is None else values

    def handed_out(self, params: Mapping[str, np.ndarray]) -> SharedParams:
        """Set the params of the layers, for all models that contain them."""
        for builder, names in self.owners:
            values = [params.get(name) for name in names]
            builder.values = values if any(value is not None for value in values) else None
        known = bool(self.owners)
        return self if self.are_handed_out is known else replace(self, are_handed_out=known)

    def known(self, owners: Sequence[Any], params: Mapping[str, np.ndarray]) -> SharedParams:
        """Return a copy that knows which layers have which params, and hands out params set earlier."""
        if len(owners) <= len(self.owners):
            return self
        now = replace(self, owners=owners)
        return now if self.are_handed_out else now.handed_out(params)

    def forgotten(self) -> SharedParams:
        """Return a copy that no longer knows the layers, because they have changed."""
        return replace(self, owners=())
