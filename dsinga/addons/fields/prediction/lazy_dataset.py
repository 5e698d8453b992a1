"""The Dataset of a prediction, which is not computed yet: it does not let its own input be overwritten.

This file imports xarray, and is imported where somebody has a Dataset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import xarray

from dsinga.base.errors import UserError
from dsinga.base.locations import is_url

SOURCE = "source"  # of the encoding of a Dataset and its variables: the path that they are read from, or several


class _WrittenApart:
    """The writing of a Dataset and of its variables, which refuse the path that they are read from."""

    __slots__ = ()

    def to_zarr(self: Any, store: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Write to a zarr store as xarray does. Raises UserError where that is the one that this is computed from."""
        _check_apart(self.encoding, store)
        return super().to_zarr(store, *args, **kwargs)  # type: ignore[misc]

    def to_netcdf(self: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Write to a file as xarray does. Raises UserError where that is the one that this is computed from."""
        _check_apart(self.encoding, path)
        return super().to_netcdf(path, *args, **kwargs)  # type: ignore[misc]


class LazyDataset(_WrittenApart, xarray.Dataset):  # type: ignore[no-untyped-call]
    """A Dataset that is computed from another one in a file, which it must not replace before.

    xarray deletes what is at the destination, and computes after that. What is made from this Dataset by xarray's
    functions may be a plain Dataset, which no longer knows its input.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """Return a variable, which does not let the input be overwritten either, or a Dataset of some."""
        item = super().__getitem__(key)
        if isinstance(item, xarray.DataArray):
            item.__class__ = LazyDataArray  # a copy would not share its attributes with this Dataset
        return item

    def compute(self, **kwargs: Any) -> xarray.Dataset:  # type: ignore[override]
        """Return a plain Dataset in memory, which may be written anywhere."""
        computed = super().compute(**kwargs)
        return xarray.Dataset(computed.data_vars, computed.coords, computed.attrs)


class LazyDataArray(_WrittenApart, xarray.DataArray):  # type: ignore[no-untyped-call]
    """A variable of a :class:`LazyDataset`; the encoding of its numbers names the input."""

    __slots__ = ()

    def compute(self, **kwargs: Any) -> xarray.DataArray:  # type: ignore[override]
        """Return a plain DataArray in memory, which may be written anywhere."""
        return xarray.DataArray(super().compute(**kwargs))

    def to_dataset(self, *args: Any, **kwargs: Any) -> LazyDataset:
        """Return a Dataset that does not let the input be overwritten either."""
        plain = super().to_dataset(*args, **kwargs)
        dataset = LazyDataset(plain.data_vars, plain.coords, plain.attrs)
        if SOURCE in self.encoding:
            dataset.encoding[SOURCE] = self.encoding[SOURCE]
        return dataset


def _check_apart(encoding: Mapping[Any, Any], destination: Any) -> None:
    """Raise UserError where a prediction of this encoding would be written to its own input."""
    sources = encoding.get(SOURCE) or ()
    if not isinstance(destination, (str, os.PathLike)):
        return
    written = _real(os.fspath(destination))
    for source in (sources,) if isinstance(sources, str) else sources:
        if _real(source) == written:
            raise UserError(
                f"the prediction is computed from {source} while it is written, so that it cannot replace it; write to "
                "another path"
            )


def _real(path: str) -> str:
    return path if is_url(path) else os.path.realpath(path)
