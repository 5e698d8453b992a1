"""Reads regions of the variables of a Dataset, and of channels that are functions of its coordinates, as float32."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import OF_TIME, kind_of, turns_of
from dsinga.base.arrays import warn_of_rounding
from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.base.registry import listed, nearest
from dsinga.data.conversion import as_records, record_dtype
from dsinga.data.missing_values import check_decoded, plain_array
from dsinga.data.sources.dask_arrays import DaskRegions, cluster_futures

Region = tuple[slice, ...]
_CALL = re.compile(r"(sin|cos)\((.+)\)")


class VariableReader:
    """Reads regions of one variable: in memory, in a file, or computed by Dask in the thread that reads.

    A pickle of a variable in a file has its path, not its numbers. Chunks that a cluster keeps are fetched from it.

    Attributes:
        name: the name of the variable.
        dims: its dimensions, in the order in which regions are read.
        shape: its points along these.

    Args:
        variable: an xarray Variable.
        name: as the attribute.

    Raises:
        UserError: the variable has no numbers.
    """

    _kept: DaskRegions | None = None

    def __init__(self, variable: Any, name: str):
        self.dims = tuple(str(dim) for dim in variable.dims)
        self.shape = tuple(variable.shape)
        self.is_lazy = variable.chunks is not None  # computed by Dask
        self.from_files = not self.is_lazy and not getattr(variable, "_in_memory", True)
        self.name, self._variable = name, variable
        check_decoded(variable, name)
        try:
            record_dtype(variable.dtype)
        except UserError as error:
            raise UserError(f"variable {name!r}: {error}") from None
        if self.is_lazy and cluster_futures(variable.data):
            self._kept = DaskRegions(variable.data, name)

    def connect(self, client: Callable[[], Any]) -> None:
        """Prepare to read in this process; ``client`` returns the Dask client for chunks that a cluster keeps."""
        if self._kept:
            self._kept.graph.connect(client)

    def read(self, region: Region) -> np.ndarray:
        """Return the numbers of a region as float32; a view where they are in memory as float32."""
        try:
            numbers = self._kept.read(region) if self._kept else self._selected(region)
        except UserError:  # which names the chunk
            raise
        except Exception as error:  # of codecs and the user's functions: any class
            places = ", ".join(
                f"{dim} {part.start} to {part.stop}" for dim, part in zip(self.dims, region, strict=True)
            )
            raise UserError(
                f"variable {self.name!r} cannot be read at {places} ({type(error).__name__}: {error}); see whether "
                f"ds[{self.name!r}].compute() can"
            ) from redacted_cause(error)
        return as_float32(plain_array(numbers, self.name), self.name)

    def _selected(self, region: Region) -> np.ndarray:
        part = self._variable[region]
        values: np.ndarray = part.data.compute(scheduler="synchronous") if self.is_lazy else part.values
        return values

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """The points of a chunk as stored, None where they are not known or there are no chunks."""
        if self.is_lazy:
            return tuple(max(sizes) for sizes in self._variable.chunks)
        preferred = self._variable.encoding.get("preferred_chunks") or {}
        return (
            tuple(int(np.max(preferred.get(dim, size))) for dim, size in zip(self.dims, self.shape, strict=True))
            if (self.from_files and preferred)
            else None
        )


class CoordinateReader(VariableReader):
    """Reads a channel that is a function of a coordinate, worked out for each region that is read.

    Args:
        variable: the xarray Variable of the coordinate.
        name: the expression, for messages.
        function: "sin", "cos", or "" for the numbers themselves.
        quantity: "day of year" or "hour of day" of a coordinate that is dates, else "".
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
def naming_variable(name: str) -> Iterator[None]:
    """Raise UserError, with the name of the variable that is read within, where a part of it cannot be read."""
    try:
        yield
    except UserError:  # which names the chunk
        raise
    except Exception as error:  # of files, codecs and the user's functions: any class
        fault = f"{type(error).__name__}: {error}"
        raise UserError(
            f"variable {name!r} cannot be read ({fault}); see whether ds[{name!r}].compute() can"
        ) from redacted_cause(error)


def as_float32(numbers: np.ndarray, name: str) -> np.ndarray:
    """Return numbers as float32. Raises UserError for one that float32 cannot have."""
    if numbers.dtype.kind == "f":
        try:
            return as_records(numbers)
        except UserError as error:
            raise UserError(f"variable {name!r}: {error}") from None
    warn_of_rounding(numbers, ("variable", name), lambda place: f"variable {name!r}")
    return numbers.astype(np.float32)


def coordinate_reader(dataset: Any, expression: str, time: str | None) -> CoordinateReader:
    """Return the reader of a channel such as "cos(latitude)", "latitude" or "sin(day of year)".

    Sine and cosine take a coordinate in degrees, or in radians where its units are these; those of "day of year" and
    "hour of day" have one turn in a year (365 or 366 days) or a day; without them it is a share of it. ``time`` is the
    dimension of time.

    Raises:
        UserError: there is no such coordinate, or it has no numbers.
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
