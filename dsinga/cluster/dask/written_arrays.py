"""Dask arrays that refuse to overwrite the stores from which they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.data.own_inputs import check_apart


def written_apart(array: Any, inputs: Sequence[str]) -> Any:
    """Make a dask array refuse to be written to its ``inputs``, paths and URLs.

    Arrays that Dask's functions make from it do not know its inputs, except by ``rechunk``.
    """
    write, store, rechunk = array.to_zarr, array.store, array.rechunk

    def write_apart(*args: Any, **kwargs: Any) -> Any:
        named: dict[str, Any] = {**kwargs, **dict(zip(("url", "component"), args, strict=False))}
        check_apart(named.get("url"), inputs, named.get("component") or "")
        return write(*args, **kwargs)

    def store_apart(targets: Any, *args: Any, **kwargs: Any) -> Any:
        check_apart(targets, inputs)
        return store(targets, *args, **kwargs)

    array.inputs = tuple(inputs)
    array.to_zarr, array.store = write_apart, store_apart
    array.rechunk = lambda *args, **kwargs: written_apart(rechunk(*args, **kwargs), inputs)
    return array
