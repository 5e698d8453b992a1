"""Opens stores as the Dataset from which windows are cut, and checks its variables."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import zarr

from dsinga.addons.fields.microscopes.opening import open_path_of_image
from dsinga.addons.fields.records.coordinates import check_increasing
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.group_members import check_members
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import listed, nearest
from dsinga.base.regular_files import open_regular
from dsinga.data.array_kinds import is_a, is_data_array, is_path, label_text
from dsinga.data.filesystem import has_zarr_metadata, zarr_store
from dsinga.data.locations import is_url
from dsinga.data.missing_values import decoded_dataset
from dsinga.data.sources.xarray_objects import missing_name

OPEN_SEVERAL = "open several as one Dataset: dsinga.data.open_stores(paths)"


def open_dataset(source: Any, definition: WindowDefinition | None = None) -> tuple[Any, str | None]:
    """Open ``source``, a Dataset, path or URL; also return its absolute path, or None.

    Targets that the definition makes from label images, such as "border(cells)", are added.
    """
    path = None
    if is_path(source):
        path = os.fspath(source)
        path = path if is_url(path) else os.path.abspath(path)
    dataset = _given(source) if path is None else open_path(path)
    from dsinga.data.sources.xarray_files import reading_files  # which imports xarray

    dataset = reading_files(dataset)
    names = (*definition.inputs, *definition.targets) if definition else ()
    if any("(" in name for name in names):
        from dsinga.addons.fields.microscopes.instance_targets import with_instance_targets

        dataset = with_instance_targets(dataset, names)
    return dataset, path


def _given(source: Any) -> Any:
    """Turn a DataArray or Dataset into a Dataset with NaN for values that mean "missing"."""
    if is_data_array(source):
        source = source.to_dataset(name=str(source.name or "x"))
    if not is_a(source, "xarray", "Dataset"):
        if hasattr(source, "definition") and hasattr(source, "dataset"):
            raise UserError("an xarray Dataset is needed, not windows; give windows.dataset")
        remedy = "name its dimensions: xarray.DataArray(array, dims=('time', 'lat', 'lon'))"
        if isinstance(source, (list, tuple)):
            remedy = OPEN_SEVERAL
        elif is_a(source, "xarray", "DataTree"):
            remedy = "give a node of it: tree['GROUP'].to_dataset()"
        raise UserError(
            f"windows are cut out of an xarray Dataset or DataArray, or the path of one, not a {type(source).__name__}"
            f"; {remedy}"
        )
    return decoded_dataset(source)


def used_variables(dataset: Any, definition: WindowDefinition) -> Any:
    """Drop the variables of a Dataset that windows do not read, so that workers do not get them.

    Variables in the definition's climatology become anomalies.
    """
    variables = [*definition.inputs, *definition.targets, *definition.static]
    for name in (*variables, *definition.mask, *(fill.variable for fill in definition.fill)):
        if name != "*" and name not in dataset.variables:
            raise missing_name("variable", name, [str(name) for name in dataset.data_vars], "Dataset")
    dims = list(dict.fromkeys(str(dim) for name in variables for dim in dataset[name].dims))
    for what, dim in definition.named_dims():
        if dim not in dims:
            hint = nearest(dim, dims) or f"; they have {listed(map(repr, dims))}"
            raise UserError(f"{what} names the dimension {dim!r}, which the variables of the windows do not have{hint}")
    _check_grids(dataset, definition)
    used = dataset[[name for name in dict.fromkeys([*variables, definition.weights]) if name in dataset.data_vars]]
    for conf in definition.dim:
        if conf.size is not None or conf.lead:
            check_increasing(used, conf)
    if not definition.climatology:
        return used
    from dsinga.addons.fields.records.anomalies import anomalies  # which imports xarray

    return anomalies(used, definition.climatology)


def _check_grids(dataset: Any, definition: WindowDefinition) -> None:
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
    leads = {"time", *(conf.name for conf in definition.dim if conf.lead)}
    for name in definition.static:
        times = [dim for dim in dataset[name].dims if dim in leads]
        if times:
            raise UserError(
                f"the static variable {name!r} has the dimension {times[0]!r}; name it in inputs, or take it once: "
                f"ds.assign({name}=ds[{name!r}].isel({times[0]}=0, drop=True))"
            )


def _listed(dims: Iterable[Any]) -> str:
    return f"({', '.join(map(str, dims))})"


def open_path(path: str) -> Any:
    """Open the Dataset at an absolute path or URL; only coordinates are read.

    An OME-Zarr image, or one of its levels, opens as with :func:`dsinga.data.open_ome_zarr`.
    """
    try:
        import xarray
    except ImportError:
        raise UserError("windows of fields need xarray: pip install 'dsinga[xarray]'") from None
    if (image := open_path_of_image(path)) is not None:
        return image
    is_zarr = path.rstrip("/").endswith(".zarr") or has_zarr_metadata(path)
    try:
        if is_zarr:
            with warnings.catch_warnings():  # of a store without consolidated metadata, which is as good
                warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated metadata")
                opened = _in_order(xarray.open_zarr(store := zarr_store(path, read_only=True), chunks=None), store)
            opened.encoding["source"] = path  # as xarray says of files
        else:
            _check_file(path)
            opened = xarray.open_dataset(path)
    except UserError:
        raise
    except Exception as error:  # of any engine: any class
        if not is_url(path) and "*" not in path and not os.path.exists(path):
            raise UserError(f"{path} was not found; give the path or URL of a zarr store or a netCDF file") from None
        fault = f"{type(error).__name__}: {error}"
        if is_zarr:
            _name_fault(path)
        remedy = f"; {OPEN_SEVERAL}" if "*" in path else ""
        raise UserError(f"{path} cannot be opened as a Dataset ({redact(fault, path)}){remedy}") from redacted_cause(
            error, path
        )
    if not opened.data_vars:
        raise UserError(
            f"{redact(path)} has no variables at its root; where they are in a group, give that: the path of the group "
            "in a zarr store, or xarray.open_dataset(path, group='GROUP')"
        )
    return opened


def _in_order(dataset: Any, store: Any) -> Any:
    """Order a Dataset's variables, thus channels, by name where the metadata of its zarr store have no order."""
    if zarr.open_group(store, mode="r").metadata.consolidated_metadata is not None:
        return dataset
    names = sorted(dataset.data_vars)
    return dataset.drop_vars(names).assign({name: dataset.variables[name] for name in names})


def _check_file(path: str) -> None:
    if is_url(path) or os.path.isdir(path):  # some engines of xarray read folders
        return
    with open_regular(path) as file:
        is_hdf5 = file.read(4) == b"\x89HDF"
    if is_hdf5:
        try:
            import h5py  # type: ignore[import-untyped]
        except ImportError:
            return
        with h5py.File(path, "r") as file:  # h5netcdf, where this fails, prints another error when it is freed
            file.attrs.get("_nc3_strict")


def _name_fault(path: str) -> None:
    try:
        check_members(path)
    except UserError:
        raise
    except Exception:  # an error of the group itself, which the first error has reported
        return


MAPPING, BOUNDS = "grid_mapping", ("bounds", "climatology")  # attributes of variables, and of coordinates


def related_names(dataset: Any) -> tuple[str, ...]:
    """Return the names of the grid mappings and bounds that a Dataset's variables name."""
    names = {
        name for variable in dataset.variables.values() for key in (MAPPING, *BOUNDS) for name in _named(variable, key)
    }
    return tuple(str(name) for name in dataset.variables if name in names)


def _named(variable: Any, key: str) -> Iterator[str]:
    """Yield the names in a variable's attribute, such as "crs", or "crs: x y other: lat lon"."""
    text = variable.attrs.get(key, variable.encoding.get(key))
    words = text.replace(":", ": ").split() if isinstance(text, str) else []
    mappings = [word[:-1] for word in words if word.endswith(":")]
    yield from mappings or words


def plain_units(units: str) -> str:
    """Return units in one spelling: m2 s-2, m**2 s**-2 and m^2.s^-2 are the same."""
    return re.sub(r"[\s*^.]", "", units).lower()


@public
def open_stores(paths: Sequence[str | os.PathLike[str]], dim: str = "time") -> Any:
    """Return the zarr stores or netCDF files at several paths or URLs as one xarray Dataset.

    Only coordinates are read. Along a dimension that the stores have, they are joined in the order of ``paths``. A
    dimension that no store has, such as "member", is new, with one point for each store. Variables along neither come
    from the first store.

    Raises:
        UserError: a store cannot be opened, lacks a variable, has other coordinates or units than the first, or begins
            before the previous store ends.
    """
    if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Sequence) or not paths:
        raise UserError(f"open_stores takes a list of paths or URLs, such as ['2018.zarr', '2019.zarr'], not {paths!r}")
    if not isinstance(dim, str):
        raise UserError(f"dim is the name of a dimension, such as 'time' or 'member', not {dim!r}")
    from dsinga.addons.fields.records import backend_arrays  # which imports xarray

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
    variables = {name: backend_arrays.joined([dataset.variables[name] for dataset in datasets], dim) for name in chosen}
    rest = first.drop_vars(chosen).assign_coords({} if dim in first.dims else {dim: np.arange(len(datasets))})
    joined = rest.assign(variables).set_coords([name for name in chosen if name in first.coords])
    joined.encoding["source"] = tuple(path for _, path in opened)  # for one file, xarray stores its path
    return joined[list(first.data_vars)]


def _check_alike(first: Any, dataset: Any, first_name: str, name: str, dim: str) -> None:
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
