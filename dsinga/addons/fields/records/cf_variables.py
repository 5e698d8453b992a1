"""Variables that others of a Dataset name by the conventions of CF: grid mappings, and bounds of coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dsinga.addons.fields.records.continued import continued, goes_on

MAPPING, BOUNDS = "grid_mapping", ("bounds", "climatology")  # attributes of variables, and of coordinates


def related_names(dataset: Any) -> tuple[str, ...]:
    """Return the names of the grid mappings and bounds that variables and coordinates of a Dataset name."""
    names = {
        name for variable in dataset.variables.values() for key in (MAPPING, *BOUNDS) for name in _named(variable, key)
    }
    return tuple(str(name) for name in dataset.variables if name in names)


def _named(variable: Any, key: str) -> Iterator[str]:
    """Yield the names in an attribute of a variable, such as "crs", or "crs: x y other: lat lon"."""
    text = variable.attrs.get(key, variable.encoding.get(key))
    words = text.replace(":", ": ").split() if isinstance(text, str) else []
    mappings = [word[:-1] for word in words if word.endswith(":")]
    yield from mappings or words


def copied(
    related: Mapping[str, Any], dataset: Any, points: Mapping[str, np.ndarray], gaps: Mapping[str, Any]
) -> dict[str, Any]:
    """Return grid mappings and bounds at points of a Dataset along its dimensions, by name.

    Bounds of points beyond the data go on by their own rules, and are left out where they follow none.

    Args:
        related: the variables, by name.
        dataset: the Dataset that has their coordinates.
        points: the points by dimension, maybe beyond the data.
        gaps: the points after which there is a gap, by dimension.
    """
    variables = {}
    for name, variable in related.items():
        dims = [dim for dim in variable.dims if dim in dataset.dims]
        if any(dim not in points for dim in dims):
            continue
        inside = all(points[dim].min() >= 0 and points[dim].max() < dataset.sizes[dim] for dim in dims)
        if inside:
            variables[name] = variable.isel({dim: points[dim] for dim in dims})
        elif len(dims) == 1 and variable.dims[0] == dims[0] and variable.ndim == 2:
            columns = [_column(variable[:, side], points[dims[0]], gaps[dims[0]]) for side in range(variable.shape[1])]
            if all(column is not None for column in columns):
                values = np.stack([column.values for column in columns], axis=1)
                variables[name] = type(columns[0])(variable.dims, values, variable.attrs)
    return variables


def _column(variable: Any, points: np.ndarray, gaps: Any) -> Any:
    """Return one side of bounds at points, None where it follows no rule by which it goes on."""
    import xarray

    side = xarray.DataArray(variable.to_base_variable().load(), name="bounds")
    before, after = bool(points.min() < 0), bool(points.max() >= side.size)
    if before and not goes_on(side, gaps=gaps, before=True) or after and not goes_on(side, gaps=gaps):
        return None
    return continued(side, points, gaps=gaps)
