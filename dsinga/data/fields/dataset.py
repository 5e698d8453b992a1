"""Opens and checks the Dataset that windows are cut out of, and finds the ends of its parts.

xarray is imported only to open a path: whoever has a Dataset has imported it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import listed, nearest
from dsinga.data.array_kinds import is_a, is_data_array
from dsinga.data.fields.axis import label_text
from dsinga.data.fields.definition import WindowDefinition
from dsinga.data.fields.opening import OPEN_SEVERAL, open_path
from dsinga.data.fields.readers import is_date
from dsinga.data.filesystem import is_url
from dsinga.data.missing_values import with_nan
from dsinga.data.sources.xarray_objects import missing_name


def reading_files(dataset: Any) -> Any:
    """Return a Dataset whose variables in files are read as :mod:`.chunk_variable` says, which imports xarray."""
    from dsinga.data.fields import chunk_variable

    return chunk_variable.reading_files(dataset)


def open_dataset(source: Any) -> tuple[Any, str | None]:
    """Return the Dataset that ``source`` is, or is the path or URL of, and that path.

    Of a path nothing but coordinates is read. Raises UserError where there is none.
    """
    if is_a(source, "xarray", "Dataset"):
        return reading_files(with_nan(source, "x")), None
    if is_data_array(source):
        return reading_files(with_nan(source.to_dataset(name=str(source.name or "x")), "x")), None
    if not isinstance(source, (str, os.PathLike)):
        remedy = "name its dimensions: xarray.DataArray(array, dims=('time', 'lat', 'lon'))"
        if isinstance(source, (list, tuple)):
            remedy = OPEN_SEVERAL
        elif is_a(source, "xarray", "DataTree"):
            remedy = "give a node of it: tree['GROUP'].to_dataset()"
        raise UserError(
            f"windows are cut out of an xarray Dataset or DataArray, or the path of one, not a {type(source).__name__}"
            f"; {remedy}"
        )
    path = os.fspath(source)
    path = path if is_url(path) else os.path.abspath(path)
    opened = open_path(path)
    if not opened.data_vars:
        raise UserError(
            f"{redact(path)} has no variables at its root; where they are in a group, give that: the path of the group "
            "in a zarr store, or xarray.open_dataset(path, group='GROUP')"
        )
    return reading_files(opened), path


def check_dataset(dataset: Any, definition: WindowDefinition) -> None:
    """Raise UserError where variables or dimensions of a definition are not those of a Dataset."""
    variables = [*definition.inputs, *definition.targets, *definition.static]
    known = [str(name) for name in dataset.data_vars]
    named = [*variables, *(name for name in (*definition.mask, *definition.fill) if name != "*")]
    for name in named:
        if name not in dataset.variables:
            raise missing_name("variable", name, known, "Dataset")
    dims = list(dict.fromkeys(str(dim) for name in variables for dim in dataset[name].dims))
    settings = ("input_dims", "input_overlap", "context", "lead", "edges", "within")
    for what, names in [
        *((what, getattr(definition, what)) for what in settings),
        ("channels", definition.channels or ()),
    ]:
        for dim in names:
            if dim not in dims:
                hint = nearest(dim, dims) or f"; they have {listed(map(repr, dims))}"
                raise UserError(
                    f"{what} names the dimension {dim!r}, which the variables of the windows do not have{hint}"
                )
    _check_grids(dataset, definition)
    for dim in definition.input_dims:
        check_increasing(dataset, dim)


def _check_grids(dataset: Any, definition: WindowDefinition) -> None:
    """Raise UserError for inputs and targets along dimensions of different grids."""
    first = definition.inputs[0]
    dims = set(dataset[first].dims)
    for name in (*definition.inputs, *definition.targets):
        lacks = [dim for dim in dataset[first].dims if dim not in dataset[name].dims and dim in definition.input_dims]
        more = [dim for dim in dataset[name].dims if dim not in dims]
        if lacks and more:
            raise UserError(
                f"{first!r} has the dimensions {_listed(dataset[first].dims)}, {name!r} {_listed(dataset[name].dims)}: "
                f"variables of a window lie on one grid; interpolate one: ds[{name!r}].interp_like(ds[{first!r}]), or "
                "rename its dimensions"
            )
    for name in definition.static:
        times = [dim for dim in dataset[name].dims if dim in definition.lead or dim == "time"]
        if times:
            raise UserError(
                f"the static variable {name!r} has the dimension {times[0]!r}; name it in inputs, or take it once: "
                f"ds.assign({name}=ds[{name!r}].isel({times[0]}=0, drop=True))"
            )


def _listed(dims: Iterable[Any]) -> str:
    return f"({', '.join(map(str, dims))})"


def check_increasing(dataset: Any, dim: str) -> None:
    """Raise UserError unless the coordinates of a dimension increase; numbers may as well decrease, as latitudes do."""
    if dim not in dataset.coords or dataset.sizes[dim] < 2:
        return
    index = dataset.indexes[dim] if dim in dataset.indexes else None
    dates = is_date(dataset[dim])
    if index is None or not (dates or dataset[dim].dtype.kind in "iuf"):
        return
    if index.is_monotonic_increasing and index.is_unique:
        return
    if not dates and index.is_monotonic_decreasing and index.is_unique:
        return
    values = dataset[dim].values
    steps = values[1:] > values[:-1]
    place = int(np.argmin(steps)) if dates or steps.mean() >= 0.5 else int(np.argmax(steps))
    raise UserError(
        f"the coordinates of {dim!r} do not increase: {label_text(values[place + 1])} (index {place + 1}) follows "
        f"{label_text(values[place])}; sort them, ds.sortby({dim!r}), and leave out what is there twice, "
        f"ds.drop_duplicates({dim!r})"
    )


def used_variables(dataset: Any, definition: WindowDefinition) -> Any:
    """Return a Dataset with the variables that windows read alone, so that others are not sent to workers."""
    names = [*definition.inputs, *definition.targets, *definition.static, definition.weights]
    return dataset[[name for name in dict.fromkeys(names) if name in dataset.data_vars]]


def select(dataset: Any, within: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return the part of a Dataset between the first and last coordinates of ``within``, as ``ds.sel`` has it."""
    for dim, ends in within.items():
        first, last = (_as_label(dataset, dim, end) for end in ends)
        if dim not in dataset.indexes:
            part = dataset.isel({dim: slice(first, None if last is None else last + 1)})
        else:
            part = dataset.sel({dim: slice(first, last)})
        if not part.sizes[dim]:
            raise UserError(f"no point of {dim!r} lies within {first} to {last}; it has {_span(dataset, dim)}")
        dataset = part
    return dataset


def _as_label(dataset: Any, dim: str, end: Any) -> Any:
    """Return an end as the coordinates of a dimension have it: job files have text where coordinates are numbers."""
    if end is None:
        return None
    if dim not in dataset.indexes:
        return int(end)
    is_number = dataset[dim].dtype.kind in "iuf"
    return float(end) if is_number else str(end)


def split_ends(
    dataset: Any, definition: WindowDefinition, cuts: Mapping[str, Any], gap: int
) -> list[dict[str, tuple[Any, Any]]]:
    """Return what is ``within`` each part of a Dataset that is cut at coordinates of one dimension."""
    if len(cuts) != 1:
        raise UserError("split takes one dimension and its coordinates, such as split(time='2018-01-01')")
    ((dim, labels),) = cuts.items()
    if dim not in dataset.dims:
        raise missing_name("dimension", dim, [str(name) for name in dataset.dims], "Dataset")
    if definition.edge(dim) == "periodic":
        raise UserError(f"{dim!r} is periodic, so that every cut has two sides; split along another dimension")
    if gap < 0:
        raise UserError(f"gap is a number of points from 0, not {gap}")
    labels = [labels] if isinstance(labels, str) or not isinstance(labels, Sequence) else list(labels)
    length = dataset.sizes[dim]
    values = dataset[dim].values if dim in dataset.coords else np.arange(length)
    begins = [_first_from(dataset, dim, label) for label in labels]
    if begins != sorted(set(begins)) or begins[0] < 1 or begins[-1] >= length:
        raise UserError(
            f"split along {dim!r} at {', '.join(map(str, labels))} leaves a part without a point; the data have "
            f"{_span(dataset, dim)}; give increasing coordinates between these"
        )
    ends = []
    for begin, stop in zip([0, *begins], [*begins, length + gap], strict=True):
        if stop - gap <= begin:
            raise UserError(f"gap={gap} leaves no point of {dim!r} before the cut at {label_text(values[stop])}")
        ends.append({dim: (_plain(values[begin]), _plain(values[stop - gap - 1]))})
    return ends


def _first_from(dataset: Any, dim: str, label: Any) -> int:
    """Return the index of the first point whose coordinate is ``label`` or beyond it."""
    if dim not in dataset.indexes:
        return int(label)
    chosen = dataset[dim].sel({dim: slice(label if not hasattr(label, "isoformat") else str(label), None)})
    return dataset.sizes[dim] - chosen.sizes[dim]


def _plain(value: Any) -> Any:
    """Return a coordinate as a number or, of a date, as text."""
    value = np.asarray(value)[()]
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def _span(dataset: Any, dim: str) -> str:
    if dim not in dataset.coords:
        return f"0 to {dataset.sizes[dim] - 1}"
    values = dataset[dim].values
    return f"{label_text(values[0])} to {label_text(values[-1])}"
