"""Computes mean, standard deviation and range of fields in blocks, also for channels of windows."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from dsinga.addons.fields.records.dataset import open_dataset
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.addons.fields.records.readers import CoordinateReader, naming_variable
from dsinga.addons.fields.records.window_arguments import names_of
from dsinga.base.cores import available_cores
from dsinga.base.error_frames import public
from dsinga.base.errors import ClusterNotReady, UserError
from dsinga.base.registry import listed
from dsinga.data.array_kinds import is_dask_collection, label_text
from dsinga.data.missing_values import check_decoded, plain_array
from dsinga.data.sources.dask_arrays import compute
from dsinga.data.sources.xarray_objects import missing_name

PATIENCE = 600.0  # seconds of a wait for the first Dask worker, as for a job
MOMENTS = ("count", "mean", "std", "min", "max")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FieldStatistics:
    """Statistics of a Dataset's variables, each a Dataset of the remaining dimensions, float64.

    Attributes:
        count: the number of values that are not NaN.
        mean: their mean; like the others, NaN if there are no values.
        std: their standard deviation, divided by the count.
    """

    count: Any
    mean: Any
    std: Any
    min: Any
    max: Any

    def of_inputs(self, windows: FieldWindows) -> dict[str, np.ndarray]:
        """Return the mean and std of the channels of records: {"mean": (C,) or (C, *space), "std": ...} in float64.

        Pass them to ``nn.Normalization``. Coordinates and masks keep their numbers: mean 0, std 1. Raises UserError for
        a variable that is constant or all NaN, or has no statistics.
        """
        _check_windows(windows)
        parts = windows.layout.first_lead.inputs
        masks = sum(part.channels for part in parts if part.masked)
        return self._of_channels(windows, parts, windows.shape[1:], masks)

    def of_targets(self, windows: FieldWindows) -> dict[str, np.ndarray]:
        """Return the mean and std of the channels of labels, without weights, like :meth:`of_inputs`."""
        _check_windows(windows)
        layout = windows.layout if windows.leads is None else windows.layout.first_lead
        return self._of_channels(windows, layout.targets, windows.label_shape[1:], 0)

    def _of_channels(
        self, windows: FieldWindows, parts: Iterable[ChannelGroup], space: tuple[int, ...], others: int
    ) -> dict[str, np.ndarray]:
        means, stds = [], []
        for part in parts:
            mean, std = self._of_part(windows, part, space)
            means.append(mean)
            stds.append(std)
        means.append(np.zeros((others, *(1,) * len(space))))
        stds.append(np.ones((others, *(1,) * len(space))))
        by_point = any(math.prod(array.shape[1:]) > 1 for array in means)
        shape = space if by_point else (1,) * len(space)
        mean, std = (
            np.concatenate([np.broadcast_to(array, (len(array), *shape)) for array in arrays])
            for arrays in (means, stds)
        )
        return {"mean": mean, "std": std} if by_point else {"mean": mean.reshape(-1), "std": std.reshape(-1)}

    def _of_part(
        self, windows: FieldWindows, part: ChannelGroup, space: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and std (channels, *space), with axes of one point if constant."""
        flat = (part.channels, *(1,) * len(space))
        if isinstance(part.reader, CoordinateReader):
            return np.zeros(flat), np.ones(flat)
        if part.name not in self.mean:
            raise UserError(
                f"there are no statistics of the variable {part.name!r}, only of {listed(map(repr, self.mean))}; take "
                "them of all variables of the windows: field_statistics(windows.dataset)"
            )
        mean, std = self.mean[part.name], self.std[part.name]
        is_empty = (self.count[part.name] == 0).all([dim for dim in mean.dims if dim in part.space])
        if bool(is_empty.any()):
            raise UserError(
                f"the statistics of {part.name!r} are of no number{_place(is_empty)}: the data are NaN there, or have "
                "no point; take them of data that have some, or leave the variable out"
            )
        if bool((std == 0).any()):
            raise UserError(
                f"the variable {part.name!r} is constant{_place(std == 0)}, so it cannot be divided by its std of 0; "
                "leave it out, or take statistics over more dimensions"
            )
        for dim in mean.dims:
            axis = windows.layout.axes[dim]
            if mean.sizes[dim] != axis.length:
                raise UserError(
                    f"the statistics of {part.name!r} have {mean.sizes[dim]} points along {dim!r}, but the windows' "
                    f"data {axis.length}; take the statistics of the same fields, or over {dim!r}, too"
                )
            labels = windows.layout.coordinates.get(dim)
            if labels is not None and dim in mean.coords and not np.array_equal(labels.values, mean[dim].values):
                raise UserError(
                    f"the statistics of {part.name!r} are at other coordinates of {dim!r} than the windows' data, or "
                    f"in another order; select theirs: statistics of ds.sel({dim}=windows.dataset[{dim!r}])"
                )
            if dim in part.space and axis.input_size != axis.length:
                raise UserError(
                    f"the statistics of {part.name!r} have a number for each point along {dim!r}, but windows have "
                    f"{axis.input_size} of its {axis.length} points; take the statistics over {dim!r}, too"
                )
        channel_dims = part.dims[: len(part.channel_sizes)]
        shapes = [1 if dim not in mean.dims else size for dim, size in zip(part.dims, part.sizes, strict=True)]
        points = [1 if dim not in mean.dims else windows.layout.axes[dim].length for dim in part.space]
        arrays = []
        for array in (mean, std):
            ordered = array.transpose(*(dim for dim in part.dims if dim in array.dims)).values
            ordered = ordered.reshape(*shapes[: len(channel_dims)], *points)
            arrays.append(np.broadcast_to(ordered, (*part.channel_sizes, *points)).reshape(part.channels, *points))
        return np.nan_to_num(arrays[0]), np.where(np.isfinite(arrays[1]), arrays[1], 1.0)


def _check_windows(windows: Any) -> None:
    if not isinstance(windows, FieldWindows):
        raise UserError(f"statistics are taken for windows, as of dsinga.windows, not for {reprlib.repr(windows)}")


def _place(constant: Any) -> str:
    if not constant.dims:
        return ""
    index = np.argwhere(constant.values)[0]
    words = [f"{dim}={_label(constant, dim, int(at))}" for dim, at in zip(constant.dims, index, strict=True)]
    return f" at {', '.join(words)}"


def _label(array: Any, dim: str, at: int) -> str:
    return label_text(array[dim].values[at]) if dim in array.coords else str(at)


@public
def field_statistics(dataset: Any, dim: str | Iterable[str] | None = None, *, client: Any = None) -> FieldStatistics:
    """Compute mean, std, count, minimum and maximum of each variable over dimensions, without NaN.

    Blocks are read and computed in threads, or for a chunked Dataset on Dask's workers. They are combined in order by
    the formula of Chan, Golub and LeVeque (1979) in float64.

    Args:
        dataset: an xarray Dataset or DataArray, or the path or URL of a zarr store or a netCDF file.
        dim: the dimensions to reduce, as in ``dataset.mean``; all by default. For a mean by level give the others, for
            a mean at each point ``"time"``.
        client: a Dask client; its workers also read and compute data in files, so they must reach the files. Without
            it, a chunked Dataset runs on Dask's current scheduler.

    Raises:
        ClusterNotReady: no worker of the client has come in time.
        UserError: no variable has a given dimension, or a variable has no numbers.
    """
    opened, _ = open_dataset(dataset)
    dims = [str(name) for name in opened.dims] if dim is None else list(names_of("dim", dim))
    if client is not None and not hasattr(client, "as_current"):
        raise UserError(f"client is a distributed.Client, or None, not {reprlib.repr(client)}")
    for name in dims:
        if name not in opened.dims:
            raise missing_name("dimension", name, [str(known) for known in opened.dims], "Dataset")
    for name, array in opened.data_vars.items():
        if array.dtype.kind not in "fiub":
            raise UserError(f"the variable {name!r} is of {array.dtype}, not of numbers; leave it out")
        check_decoded(array, str(name))
    if client is not None:
        _await_worker(client)
    results: dict[str, dict[str, Any]] = {moment: {} for moment in MOMENTS}
    for name, array in opened.data_vars.items():
        over = [name for name in array.dims if name in dims]
        with contextlib.nullcontext() if client is None else client.as_current():
            with naming_variable(str(name)):
                moments = _moments_of(array if client is None else _chunked(array), over)
        for moment, values in zip(MOMENTS, moments, strict=True):
            results[moment][str(name)] = values
    return FieldStatistics(**{moment: type(opened)(values) for moment, values in results.items()})


def _await_worker(client: Any) -> None:
    """Wait for the first Dask worker, and log it; raise ClusterNotReady after PATIENCE seconds without one."""
    if client.asynchronous or client.scheduler_info()["workers"]:
        return
    limit = timedelta(seconds=PATIENCE)
    _log.warning("the Dask cluster of the client has no worker; waiting for one, %s at most", limit)
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise ClusterNotReady(
            f"no Dask worker has come to the cluster of the client within {limit}; start some, or leave client out"
        ) from error


def _chunked(array: Any) -> Any:
    if array.chunks is not None or getattr(array.variable, "_in_memory", True):
        return array
    return array.chunk(array.encoding.get("preferred_chunks") or "auto")


def _moments_of(array: Any, dims: Sequence[str]) -> list[Any]:
    count, mean, squares, least, most = moments_over(array, dims)
    with np.errstate(invalid="ignore", divide="ignore"):
        std = np.sqrt(squares / count)
    constant = least == most  # without rounding errors
    mean, std = np.where(constant, least, mean), np.where(constant, 0, std)
    kept = [name for name in array.dims if name not in dims]
    coordinates = {name: part for name, part in array.coords.items() if set(part.dims) <= set(kept)}
    make = functools.partial(array.__class__, coords=coordinates, dims=kept, attrs=array.attrs)
    values = [count.astype(np.int64), *(np.where(count == 0, np.nan, part) for part in (mean, std, least, most))]
    return [make(part) for part in values]


BLOCK_NUMBERS = 1 << 22  # of an array that are read together: 32 MiB in float64
PIECE_NUMBERS = 1 << 16  # of a block that are computed together: 512 KiB in float64, which stay in a core's cache
PIECE_WIDTH = 1024  # columns of a piece at most
GROUP_BLOCKS, GROUP_BYTES = 64, 256 << 20  # moments that Dask's workers return together, at most


def moments_over(array: Any, dims: Sequence[str]) -> np.ndarray:
    """Compute the moments (5, *kept) of an xarray DataArray over ``dims``; ``kept`` are the other dimensions."""
    axes = tuple(array.dims.index(name) for name in dims)
    blocks = _blocks(array, dims)
    found = _on_dask(blocks, axes) if is_dask_collection(array) else _in_threads(blocks, axes)
    return functools.reduce(combine, found)


def _blocks(array: Any, dims: Sequence[str]) -> Iterator[Any]:
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
    """Yield the moments of blocks of a dask array in order, computed where Dask computes."""
    lazy = (_lazy_moments(block.data, axes) for block in blocks)
    for first in lazy:
        count = max(1, min(GROUP_BLOCKS, GROUP_BYTES // first.nbytes))
        yield from compute(first, *itertools.islice(lazy, count - 1))


def _lazy_moments(block: Any, axes: tuple[int, ...]) -> Any:
    kept = [(size,) for axis, size in enumerate(block.shape) if axis not in axes]
    return block.rechunk(-1).map_blocks(
        moments_of, axes, dtype=np.float64, chunks=((5,), *kept), drop_axis=list(axes), new_axis=0,
        meta=np.empty((0,) * (1 + len(kept))),
    )  # fmt: skip


def moments_of(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Compute count, mean, sum of squared deviations, minimum and maximum over axes, without NaN: (5, *kept).

    If all values are NaN, the mean is 0 and the range goes from infinity to -infinity.
    """
    values = plain_array(values, "x")
    kept = tuple(axis for axis in range(values.ndim) if axis not in axes)
    shape, size = [values.shape[axis] for axis in kept], math.prod(values.shape[axis] for axis in axes)
    if not values.size:
        ends = [np.zeros(shape)] * 3 + [np.full(shape, np.inf), np.full(shape, -np.inf)]
        return np.stack(ends)
    down = kept[-1:] == (values.ndim - 1,)  # neighbours in memory belong to different results
    matrix = values.transpose(axes + kept if down else kept + axes).reshape((size, -1) if down else (-1, size))
    rows = matrix if down else matrix.T  # (size, results)
    across = min(rows.shape[1], PIECE_WIDTH) if down else max(1, PIECE_NUMBERS // size)
    step = max(1, PIECE_NUMBERS // across)
    result = np.empty((5, rows.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # moments of infinity are not finite
        for column in range(0, rows.shape[1], across):
            pieces = (rows[row : row + step, column : column + across] for row in range(0, size, step))
            result[:, column : column + across] = functools.reduce(combine, map(_piece_moments, pieces))
    return result.reshape(5, *shape)


def _piece_moments(piece: np.ndarray) -> np.ndarray:
    """Compute the moments (5, n) of the columns of a piece (m, n)."""
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
    rest = numbers.sum(axis=0) / some  # the rounding error of the first sum
    squares = np.square(numbers, out=numbers).sum(axis=0) - count * rest * rest
    return np.stack([count, mean + rest, np.maximum(squares, 0), least(axis=0), most(axis=0)])


def combine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Combine the moments of two sets, by Chan, Golub and LeVeque (1979)."""
    count = first[0] + second[0]
    some = np.maximum(count, 1)
    step = second[1] - first[1]
    mean = np.where(second[0] == 0, first[1], first[1] + step * (second[0] / some))
    squares = first[2] + second[2] + np.square(step) * (first[0] * second[0] / some)
    return np.stack([count, mean, squares, np.minimum(first[3], second[3]), np.maximum(first[4], second[4])])
