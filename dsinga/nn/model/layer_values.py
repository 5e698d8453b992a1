"""The values of params that several models share because they have a layer in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.nn.writing.symbol import LayerBuilder

Owners = Sequence[tuple[LayerBuilder, Sequence[str]]]  # the layers of a model, with the names of their params in order


def newest_values(own: Mapping[str, np.ndarray] | None, owners: Owners) -> dict[str, np.ndarray] | None:
    """Return the params of a model by name: those of its layers, else its own; None where there are none."""
    values = dict(own or {})
    for builder, names in owners:
        for name, value in zip(names, builder.values or (), strict=False):
            if value is not None:
                values[name] = value
    return values or None if own is None else values


def hand_out(params: Mapping[str, np.ndarray], owners: Owners) -> None:
    """Let the layers of a model have these params, and other models with them; none for those that are not given."""
    for builder, names in owners:
        values = [params.get(name) for name in names]
        builder.values = values if any(value is not None for value in values) else None
