"""Moments of an array (count, mean, squared differences, range), by block in threads or on Dask's workers, in float64.

Blocks, and the pieces of a block, follow from shapes alone and are combined in their order. So the moments have the
same bits however the array is chunked, and wherever blocks are computed.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from dsinga.base.cores import available_cores
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.missing_values import plain_array
from dsinga.data.sources.dask_arrays import compute

BLOCK_NUMBERS = 1 << 22  # of an array that are read together: 32 MiB in float64
PIECE_NUMBERS = 1 << 16  # of a block that are computed together: 512 KiB in float64, which stay in a core's cache
PIECE_WIDTH = 1024  # columns of a piece at most
GROUP_BLOCKS, GROUP_BYTES = 64, 256 << 20  # moments that Dask's workers return together, at most


def moments_over(array: Any, dims: Sequence[str]) -> np.ndarray:
    """Return the moments (5, *kept) of an xarray DataArray over dimensions; ``kept`` are those of the others."""
    axes = tuple(array.dims.index(name) for name in dims)
    blocks = _blocks(array, dims)
    found = _on_dask(blocks, axes) if is_dask_collection(array) else _in_threads(blocks, axes)
    return functools.reduce(combine, found)


def _blocks(array: Any, dims: Sequence[str]) -> Iterator[Any]:
    """Yield the blocks of an array, cut along ``dims`` from the first one on."""
    sizes, numbers = {}, array.size
    for name in dims:
        if numbers <= BLOCK_NUMBERS:
            break
        others = numbers // array.sizes[name]
        sizes[name] = max(1, BLOCK_NUMBERS // others)
        numbers = others * sizes[name]
    starts = [range(0, array.sizes[name], size) for name, size in sizes.items()]
    for places in itertools.product(*starts):
        ends = zip(sizes.items(), places, strict=True)
        yield array.isel({name: slice(place, place + size) for (name, size), place in ends})


def _in_threads(blocks: Iterable[Any], axes: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield the moments of blocks in their order, each read and computed in a thread."""
    threads = available_cores()
    pending: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(threads, "dsinga-moments") as pool:
        for block in blocks:
            pending.append(pool.submit(_read, block, axes))
            if len(pending) > threads:  # so that memory has this many blocks at most
                yield pending.popleft().result()
        for future in pending:
            yield future.result()


def _read(block: Any, axes: tuple[int, ...]) -> np.ndarray:
    return moments_of(block.values, axes)


def _on_dask(blocks: Iterable[Any], axes: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield the moments of blocks of a dask array in their order, computed where Dask computes."""
    lazy = (_lazy_moments(block.data, axes) for block in blocks)
    for first in lazy:
        count = max(1, min(GROUP_BLOCKS, GROUP_BYTES // first.nbytes))
        yield from compute(first, *itertools.islice(lazy, count - 1))


def _lazy_moments(block: Any, axes: tuple[int, ...]) -> Any:
    """Return the moments of a block as a dask array, for which all its chunks are joined on one worker."""
    kept = [(size,) for axis, size in enumerate(block.shape) if axis not in axes]
    return block.rechunk(-1).map_blocks(
        moments_of, axes, dtype=np.float64, chunks=((5,), *kept), drop_axis=list(axes), new_axis=0,
        meta=np.empty((0,) * (1 + len(kept))),
    )  # fmt: skip


def moments_of(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return count, mean, sum of squared differences from it, minimum and maximum over axes, without NaN: (5, *kept).

    Where all are NaN the mean is 0 and the range from infinity to -infinity.
    """
    values = plain_array(values, "x")
    kept = tuple(axis for axis in range(values.ndim) if axis not in axes)
    shape, size = [values.shape[axis] for axis in kept], math.prod(values.shape[axis] for axis in axes)
    if not values.size:
        ends = [np.zeros(shape)] * 3 + [np.full(shape, np.inf), np.full(shape, -np.inf)]
        return np.stack(ends)
    down = kept[-1:] == (values.ndim - 1,)  # numbers that lie beside each other belong to different results
    matrix = values.transpose(axes + kept if down else kept + axes).reshape((size, -1) if down else (-1, size))
    rows = matrix if down else matrix.T  # (size, results)
    across = min(rows.shape[1], PIECE_WIDTH) if down else max(1, PIECE_NUMBERS // size)
    step = max(1, PIECE_NUMBERS // across)
    result = np.empty((5, rows.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # of infinity, whose moments are not finite
        for column in range(0, rows.shape[1], across):
            pieces = (rows[row : row + step, column : column + across] for row in range(0, size, step))
            result[:, column : column + across] = functools.reduce(combine, map(_piece_moments, pieces))
    return result.reshape(5, *shape)


def _piece_moments(piece: np.ndarray) -> np.ndarray:
    """Return the moments (5, n) of the columns of a piece (m, n)."""
    numbers = piece.astype(np.float64)
    mean, invalid = numbers.sum(axis=0), None
    count: Any = np.full(len(mean), float(len(piece)))
    least: Callable[..., Any] = piece.min
    most: Callable[..., Any] = piece.max
    if np.isnan(mean).any():
        invalid = np.isnan(numbers)
        valid = ~invalid
        count = valid.sum(axis=0).astype(np.float64)
        least = functools.partial(piece.min, initial=np.inf, where=valid)
        most = functools.partial(piece.max, initial=-np.inf, where=valid)
        numbers[invalid] = 0
        mean = numbers.sum(axis=0)
    some = np.maximum(count, 1)
    mean /= some
    numbers -= mean
    if invalid is not None:
        numbers[invalid] = 0
    rest = numbers.sum(axis=0) / some  # what rounding of the first sum has left
    squares = np.square(numbers, out=numbers).sum(axis=0) - count * rest * rest
    return np.stack([count, mean + rest, np.maximum(squares, 0), least(axis=0), most(axis=0)])


def combine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the moments of two sets of numbers together, by the formula of Chan, Golub and LeVeque (1979)."""
    count = first[0] + second[0]
    some = np.maximum(count, 1)
    step = second[1] - first[1]
    mean = np.where(second[0] == 0, first[1], first[1] + step * (second[0] / some))
    squares = first[2] + second[2] + np.square(step) * (first[0] * second[0] / some)
    return np.stack([count, mean, squares, np.minimum(first[3], second[3]), np.maximum(first[4], second[4])])
