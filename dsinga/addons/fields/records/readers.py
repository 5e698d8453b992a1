"""Reads regions of a Dataset's variables, and of functions of its coordinates, as float32."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.coordinates import OF_TIME, kind_of, turns_of
from dsinga.base.arrays import warn_of_rounding
from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.base.registry import listed, nearest
from dsinga.data.conversion import as_records, record_dtype
from dsinga.data.missing_values import check_decoded, plain_array
from dsinga.data.sources.dask_arrays import DaskRegions, cluster_futures

Region = tuple[slice, ...]
Ranges = Mapping[str, tuple[int, int]]  # by dimension, the points [low, high), which may lie beyond the data
_CALL = re.compile(r"(sin|cos)\((.+)\)")


class VariableReader:
    """Reads regions of a variable: in memory, in a file, or computed by Dask in this thread.

    A pickle of a variable in a file has its path, not its numbers.

    Attributes:
        dims: its dimensions, in the order in which regions are read.
    """

    _kept: DaskRegions | None = None

    def __init__(self, variable: Any, name: str):
        self.dims = tuple(str(dim) for dim in variable.dims)
        self.shape = tuple(variable.shape)
        self.is_lazy = variable.chunks is not None  # computed by Dask
        self.from_files = not self.is_lazy and not getattr(variable, "_in_memory", True)
        self.name, self._variable = name, variable
        self._begins: dict[str, list[int]] = {}  # of chunks, by dimension
        check_decoded(variable, name)
        try:
            record_dtype(variable.dtype)
        except UserError as error:
            raise UserError(f"variable {name!r}: {error}") from None
        if self.is_lazy and cluster_futures(variable.data):
            self._kept = DaskRegions(variable.data, name)

    def connect(self, client: Callable[[], Any]) -> None:
        """Prepare to read in this process; ``client`` returns the Dask client for kept chunks."""
        if self._kept:
            self._kept.graph.connect(client)

    def read(self, region: Region) -> np.ndarray:
        """Return a region's numbers as float32, a view of float32 in memory."""
        with naming_variable(self.name, zip(self.dims, region, strict=True)):
            numbers = self._kept.read(region) if self._kept else self._selected(region)
        return as_float32(plain_array(numbers, self.name), self.name)

    def _selected(self, region: Region) -> np.ndarray:
        if self._file is not None:
            array, starts = self._file
            return array.read(
                tuple(slice(start + part.start, start + part.stop) for start, part in zip(starts, region, strict=True))
            )
        part = self._variable[region]
        values: np.ndarray = part.data.compute(scheduler="synchronous") if self.is_lazy else part.values
        return values

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """The points of a chunk as stored; None if unknown or without chunks."""
        if self.is_lazy:
            return tuple(max(sizes) for sizes in self._variable.chunks)
        preferred = self._variable.encoding.get("preferred_chunks") or {}
        return (
            tuple(int(np.max(preferred.get(dim, size))) for dim, size in zip(self.dims, self.shape, strict=True))
            if (self.from_files and preferred)
            else None
        )

    @cached_property
    def _file(self) -> tuple[Any, list[int]] | None:
        """The zarr array whose numbers are the variable's, and the variable's first point in it; else None."""
        if not self.from_files:
            return None
        from dsinga.addons.fields.records import backend_arrays  # which imports xarray

        return backend_arrays.plain_file(self._variable._data)

    @cached_property
    def is_remote(self) -> bool:
        """Whether chunks are not in local files, and are slow to read again."""
        from dsinga.addons.fields.records import backend_arrays  # which imports xarray

        return backend_arrays.is_remote(self._variable._data)

    @cached_property
    def threads(self) -> int:
        """The most threads that read chunks of a variable at once; more than one only in files."""
        if not self.from_files:
            return 1
        from dsinga.addons.fields.records import backend_arrays  # which imports xarray

        return backend_arrays.most_threads(self._variable._data)

    def chunk_begins(self, dim: str) -> list[int]:
        """Return the first points of the stored chunks along a dimension; only 0 if unknown."""
        if dim not in self._begins:
            from dsinga.addons.fields.records import backend_arrays  # which imports xarray

            axis = self.dims.index(dim)
            begins = backend_arrays.chunk_begins(self._variable._data, axis)
            if begins is None:
                begins = np.arange(0, self.shape[axis], (self.chunk_shape or self.shape)[axis])
            self._begins[dim] = begins.tolist()
        return self._begins[dim]


class CoordinateReader(VariableReader):
    """Reads a channel that is a function of a coordinate, computed for each region.

    ``function`` is "sin", "cos", or "" for the numbers themselves; ``quantity`` is "day of year" or "hour of day" for a
    coordinate of dates, else "".
    """

    def __init__(self, variable: Any, name: str, function: str = "", quantity: str = ""):
        self.name, self._variable = name, variable
        self.dims = tuple(str(dim) for dim in variable.dims)
        self.shape = tuple(variable.shape)
        self.is_lazy = self.from_files = False
        self._function, self._quantity = function, quantity

    @property
    def chunk_shape(self) -> None:
        """None: coordinates have no chunks that matter."""
        return None

    def read(self, region: Region) -> np.ndarray:
        """Return the function of a region of the coordinate as float32."""
        values = np.asarray(self._variable[region].values)
        if self._quantity:
            turns = turns_of(values, self._quantity)
            numbers = turns * (2 * np.pi) if self._function else turns
        else:
            numbers = values.astype(np.float64)
            in_radians = str(self._variable.attrs.get("units", "")).startswith("rad")
            numbers = np.deg2rad(numbers) if self._function and not in_radians else numbers
        if self._function:
            numbers = np.sin(numbers) if self._function == "sin" else np.cos(numbers)
        return as_float32(numbers, self.name)


@contextlib.contextmanager
def naming_variable(name: str, region: Iterable[tuple[str, slice]] = ()) -> Iterator[None]:
    """Context that turns failures to read a variable, or its ``region`` by dimension, into UserErrors with its name."""
    try:
        yield
    except UserError:  # which names the chunk
        raise
    except Exception as error:  # of files, codecs and the user's functions: any class
        places = ", ".join(f"{dim} {part.start} to {part.stop}" for dim, part in region)
        raise UserError(
            f"variable {name!r} cannot be read{places and f' at {places}'} ({type(error).__name__}: {error}); see "
            f"whether ds[{name!r}].compute() can"
        ) from redacted_cause(error)


def as_float32(numbers: np.ndarray, name: str) -> np.ndarray:
    """Convert numbers to float32. Raises UserError if they are out of range."""
    if numbers.dtype.kind == "f":
        try:
            return as_records(numbers)
        except UserError as error:
            raise UserError(f"variable {name!r}: {error}") from None
    warn_of_rounding(numbers, ("variable", name), lambda place: f"variable {name!r}")
    return numbers.astype(np.float32)


def coordinate_reader(dataset: Any, expression: str, time: str | None) -> CoordinateReader:
    """Create the reader of a channel such as "cos(latitude)", "latitude" or "sin(day of year)".

    Sine and cosine accept coordinates in degrees, or in radians if the units say so. "day of year" and "hour of day"
    make one turn in a year (365 or 366 days) or a day. Without sine or cosine, the channel is the share of it.
    """
    call = _CALL.fullmatch(expression.strip())
    function, name = (call[1], call[2].strip()) if call else ("", expression.strip())
    quantity, name = (name, time or "") if name in OF_TIME else ("", name)
    kind = kind_of(dataset[name]) if name in dataset.variables else ""
    if quantity and kind != "date":
        raise UserError(f"the coordinate channel {expression!r} needs a dimension with dates, and the Dataset has none")
    if not kind:
        names = [str(known) for known in dataset.coords]
        hint = nearest(name, [*names, *OF_TIME]) or f"; it has {listed(map(repr, names))}"
        raise UserError(f"the Dataset has no coordinate {name!r} for the channel {expression!r}{hint}")
    if not quantity and kind != "number":
        raise UserError(
            f"the coordinate {name!r} of the channel {expression!r} is not numbers; of dates there are sin(day of "
            "year), cos(day of year), sin(hour of day) and cos(hour of day)"
        )
    return CoordinateReader(dataset[name].variable, expression, function, quantity)


def read_ranges(reader: VariableReader, axes: Mapping[str, Axis], ranges: Ranges, masked: bool = False) -> np.ndarray:
    """Read a variable at ranges of points along its axes, float32.

    Points beyond the data follow the edge of their dimension; beyond an edge of zeros they are NaN if NaN is masked.
    """
    runs: list[list[slice]] = []  # of consecutive points of the data that are read, along each dimension
    takes: list[np.ndarray | None] = []  # the places of the wanted points among these
    zeros: list[np.ndarray | None] = []
    for dim in reader.dims:
        axis, (low, high) = axes[dim], ranges[dim]
        if 0 <= low and high <= axis.length:
            runs.append([slice(low, high)])
            takes.append(None)
            zeros.append(None)
            continue
        points, outside = axis.positions(low, high)
        needed = np.unique(points)
        breaks = np.flatnonzero(np.diff(needed) > 1) + 1
        runs.append([slice(int(run[0]), int(run[-1]) + 1) for run in np.split(needed, breaks)])
        takes.append(np.searchsorted(needed, points))
        zeros.append(outside if axis.edge == "zero" else None)
    array = _read_runs(reader, runs)
    for place, take in enumerate(takes):
        if take is not None:
            array = array.take(take, axis=place)
    for place, beyond in enumerate(zeros):
        if beyond is not None:
            array[(slice(None),) * place + (beyond,)] = np.nan if masked else 0
    return array


def _read_runs(reader: VariableReader, runs: list[list[slice]]) -> np.ndarray:
    if all(len(parts) == 1 for parts in runs):
        return reader.read(tuple(parts[0] for parts in runs))
    shape = [sum(part.stop - part.start for part in parts) for parts in runs]
    array = np.empty(shape, np.float32)
    offsets = [np.cumsum([0, *(part.stop - part.start for part in parts)]) for parts in runs]
    for index in itertools.product(*(range(len(parts)) for parts in runs)):
        region = tuple(parts[number] for parts, number in zip(runs, index, strict=True))
        places = tuple(
            slice(int(ends[number]), int(ends[number + 1])) for ends, number in zip(offsets, index, strict=True)
        )
        array[places] = reader.read(region)
    return array
