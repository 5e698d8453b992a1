"""Several stores or files as one Dataset, along time or by member, which is read from where they lie without Dask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.addons.fields.records.dataset import open_dataset
from dsinga.addons.fields.records.trained_layout import plain_units
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import listed
from dsinga.data.array_kinds import label_text


@public
def open_stores(paths: Sequence[str | os.PathLike[str]], dim: str = "time") -> Any:
    """Return the Datasets at several paths or URLs, zarr stores or netCDF files, as one xarray Dataset.

    Nothing but coordinates is read. Along a dimension that the stores have, they follow one another in the order of
    ``paths``; a dimension that none has, such as "member", is new, and has a point for each store. What lies along
    neither is taken from the first store.

    Raises:
        UserError: a store cannot be opened, lacks a variable, has other coordinates or units than the first, or begins
            before the end of the one before.
    """
    if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Sequence) or not paths:
        raise UserError(f"open_stores takes a list of paths or URLs, such as ['2018.zarr', '2019.zarr'], not {paths!r}")
    if not isinstance(dim, str):
        raise UserError(f"dim is the name of a dimension, such as 'time' or 'member', not {dim!r}")
    opened = [open_dataset(path) for path in paths]
    names, datasets = [redact(str(path)) for _, path in opened], [dataset for dataset, _ in opened]
    first = datasets[0]
    for name, dataset in zip(names[1:], datasets[1:], strict=True):
        _check_alike(first, dataset, names[0], name, dim)
    if dim in first.dims:
        chosen = [name for name, variable in first.variables.items() if dim in variable.dims]
        _check_order(datasets, names, dim)
    else:
        most = max(variable.ndim for variable in first.data_vars.values())
        chosen = [name for name, variable in first.data_vars.items() if variable.ndim == most]
    variables = {name: _joined([dataset.variables[name] for dataset in datasets], dim) for name in chosen}
    rest = first.drop_vars(chosen).assign_coords({} if dim in first.dims else {dim: np.arange(len(datasets))})
    joined = rest.assign(variables).set_coords([name for name in chosen if name in first.coords])
    joined.encoding["source"] = tuple(path for _, path in opened)  # as that of one file is its path
    return joined[list(first.data_vars)]


def _check_alike(first: Any, dataset: Any, first_name: str, name: str, dim: str) -> None:
    """Raise UserError where a Dataset has not the variables and coordinates of the first one."""
    for known, variable in first.variables.items():
        if known not in dataset.variables:
            raise UserError(f"{name} has no {known!r}, which {first_name} has; it has {listed(dataset.variables)}")
        here = dataset.variables[known]
        if here.dims != variable.dims:
            raise UserError(f"{known!r} has the dimensions {here.dims} in {name}, and {variable.dims} in {first_name}")
        units = [str(each.attrs.get("units", "")) for each in (here, variable)]
        if plain_units(units[0]) != plain_units(units[1]):
            raise UserError(
                f"{known!r} has the units {units[0]!r} in {name}, and {units[1]!r} in {first_name}; convert one"
            )
        if (here.dtype.kind == "M") != (variable.dtype.kind == "M"):
            raise UserError(
                f"{known!r} has {here.dtype} in {name}, and {variable.dtype} in {first_name}; give one calendar"
            )
    for each in first.dims:
        is_same = dataset.sizes[each] == first.sizes[each]
        if each in first.indexes:
            is_same = is_same and first.indexes[each].equals(dataset.indexes[each])
        if each != dim and not is_same:
            raise UserError(
                f"{name} has other points of {str(each)!r} than {first_name}: stores are joined along {dim!r} alone; "
                "choose points that all have"
            )


def _check_order(datasets: Sequence[Any], names: Sequence[str], dim: str) -> None:
    """Raise UserError where a Dataset begins before the end of the one before it."""
    for number in range(1, len(datasets)):
        if dim not in datasets[number].indexes:
            return
        end, begin = datasets[number - 1].indexes[dim][-1], datasets[number].indexes[dim][0]
        try:
            is_later = begin > end
        except TypeError as error:  # of cftime
            raise UserError(
                f"{names[number]} has {dim!r} in another calendar than {names[number - 1]} ({error})"
            ) from None
        if not is_later:
            raise UserError(
                f"{names[number]} begins at {label_text(datasets[number][dim].values[0])}, not after the end of "
                f"{names[number - 1]}, {label_text(datasets[number - 1][dim].values[-1])}; give paths in the order of "
                f"{dim!r}, of stores that do not overlap"
            )


def _joined(variables: Sequence[Any], dim: str) -> Any:
    """Return variables as one along a dimension, lazily where they are in files."""
    from dsinga.addons.fields.records import backend_arrays  # which imports xarray

    return backend_arrays.joined(variables, dim)
