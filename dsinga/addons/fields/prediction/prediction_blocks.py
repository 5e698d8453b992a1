"""Divides the prediction of a Dataset into Dask tasks with windows, tiles and chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask._task_spec import Alias, DataNode, Dict, GraphNode, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph

from dsinga.addons.fields.prediction.predictor import FieldPredictor, PredictionBlock, Range
from dsinga.addons.fields.prediction.rollout import FieldRollout
from dsinga.addons.fields.records.readers import naming_variable
from dsinga.data.missing_values import plain_array

Points = Sequence[np.ndarray]  # selected of an array: increasing points along each of its axes


class BlockPlan(NamedTuple):
    """One block of the result: its position, the points to read of each array, and arguments."""

    position: tuple[int, ...]
    selections: Mapping[str, Points]
    arguments: tuple[Any, ...] = ()


class _Run(NamedTuple):
    """Neighbouring points of a selection within a chunk along one axis, with their places in both."""

    chunk: int
    target: slice
    source: slice


@dataclass
class _Piece:
    """The part of a selection in one chunk; the task computes it, or gets it by its key."""

    chunk: Any
    target: tuple[slice, ...]
    source: tuple[slice, ...]


@dataclass
class _Selection:
    """A selection of points from a dask array, as pieces of chunks, hidden from Dask's search for tasks."""

    shape: tuple[int, ...]
    dtype: np.dtype
    pieces: list[_Piece]

    def fill(self, values: Mapping[Any, Any]) -> np.ndarray:
        """Copy the selection into one array; chunks that the task computes are in memory one at a time."""
        selection = np.empty(self.shape, self.dtype)
        for piece in self.pieces:
            chunk = piece.chunk(values) if isinstance(piece.chunk, GraphNode) else values[piece.chunk]
            selection[piece.target] = plain_array(chunk, "x")[piece.source]
        return selection


def map_selections(
    function: Callable[..., np.ndarray],
    shared: Any,
    arrays: Mapping[str, da.Array],
    plans: Iterable[BlockPlan],
    chunks: tuple[tuple[int, ...], ...],
    dtype: Any,
    name: str,
    computed: Mapping[str, da.Array] | None = None,
) -> da.Array:
    """Build the dask array with the blocks ``function(shared, selections, *arguments)``, numpy arrays.

    Dask sends ``shared``, a delayed object, to each worker once. ``name`` must be unique to the result's contents.

    Tasks compute chunks that depend on no other chunk themselves, perhaps several times; other chunks, and the chunks
    of ``computed``, are computed once.
    """
    sources = {key: _Source(array) for key, array in arrays.items()}
    sources |= {key: _Source(array, is_computed=True) for key, array in (computed or {}).items()}
    layer: dict[Any, Task] = {}
    for plan in plans:
        selections = {key: sources[key].plan(selection) for key, selection in plan.selections.items()}
        needed = {ref for selection in selections.values() for piece in selection.pieces for ref in _needs(piece.chunk)}
        values = Dict({ref: TaskRef(ref) for ref in sorted(needed, key=str)})
        task_key = (name, *plan.position)
        layer[task_key] = Task(
            task_key, _compute_block, function, TaskRef(shared.key), values, selections, plan.arguments
        )
    dependencies = [shared, *(source.array for source in sources.values())]
    graph = HighLevelGraph.from_collections(name, layer, dependencies=dependencies)
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), dtype))


def _needs(chunk: Any) -> Iterable[Any]:
    return chunk.dependencies if isinstance(chunk, GraphNode) else (chunk,)


def _compute_block(
    function: Callable[..., np.ndarray],
    shared: Any,
    values: Mapping[Any, Any],
    selections: Mapping[str, _Selection],
    arguments: tuple[Any, ...],
) -> np.ndarray:
    return function(shared, {key: _filled(key, selection, values) for key, selection in selections.items()}, *arguments)


def _filled(name: str, selection: _Selection, values: Mapping[Any, Any]) -> np.ndarray:
    with naming_variable(name):
        return selection.fill(values)


class _Source:
    """A dask array that tiles are read from; with ``is_computed``, its chunks stay tasks."""

    def __init__(self, array: da.Array, is_computed: bool = False):
        self.array, self._is_computed = array, is_computed
        self._starts = [np.cumsum((0, *sizes)) for sizes in array.chunks]
        self._graph = {} if is_computed else dict(array.__dask_graph__())
        self._chunks: dict[tuple[int, ...], Any] = {}
        self._known: dict[tuple[int, bytes], list[_Run]] = {}

    def plan(self, selection: Points) -> _Selection:
        runs = [self._runs(axis, points) for axis, points in enumerate(selection)]
        pieces = [
            _Piece(
                self._chunk(tuple(run.chunk for run in piece)),
                tuple(run.target for run in piece),
                tuple(run.source for run in piece),
            )
            for piece in product(*runs)
        ]
        return _Selection(tuple(len(points) for points in selection), self.array.dtype, pieces)

    def _runs(self, axis: int, points: np.ndarray) -> list[_Run]:
        key = axis, points.tobytes()
        if key not in self._known:
            self._known[key] = list(_runs(points, self._starts[axis]))
        return self._known[key]

    def _chunk(self, index: tuple[int, ...]) -> Any:
        """Return the task that computes a chunk, or its key if it depends on other tasks."""
        if self._is_computed:
            return (self.array.name, *index)
        if index not in self._chunks:
            key: Any = (self.array.name, *index)
            while isinstance(node := self._graph.get(key), Alias):
                key = node.target
            inputs = [self._graph.get(ref) for ref in node.dependencies] if isinstance(node, Task) else [None]
            is_alone = all(isinstance(value, DataNode) for value in inputs)
            self._chunks[index] = node if is_alone else key
        return self._chunks[index]


def _runs(points: np.ndarray, bounds: np.ndarray) -> Iterator[_Run]:
    chunks = np.searchsorted(bounds, points, side="right") - 1
    breaks = np.flatnonzero((np.diff(points) != 1) | (np.diff(chunks) != 0)) + 1
    for start, stop in pairwise([0, *breaks.tolist(), len(points)]):
        if start < stop:
            first = int(points[start] - bounds[chunks[start]])
            yield _Run(int(chunks[start]), slice(start, stop), slice(first, first + stop - start))


BLOCK_BYTES = 1 << 26  # that a task reads and gives, at most, where it makes several calls


@dataclass(frozen=True)
class PredictionBlocks:
    """The blocks of a prediction, each computed by one task.

    Along each axis of space, a block is about one chunk of the variables. Along time it is half a chunk, or a few times
    the steps that a window reads, so that few tasks decode the same chunk. A block has at least one call of the net,
    and otherwise at most BLOCK_BYTES or half a chunk.
    """

    predictor: FieldPredictor
    arrays: Mapping[str, da.Array]
    times: tuple[str, ...]
    most: int | None = None

    def __len__(self) -> int:
        return math.prod(map(len, self._ranges()))

    def _chunk(self, dim: str) -> int:
        sizes = [1]
        for part in self.predictor.variables:
            if dim in part.reader.dims:
                sizes += self.arrays[part.name].chunks[part.reader.dims.index(dim)]
        return max(sizes)

    @property
    def _batch_dim(self) -> int | None:
        """The dimension of samples for the rows of a call: time, or the longest one."""
        counts = self._counts
        if not counts:
            return None
        along_time = [place for place, dim in enumerate(self.predictor.samples) if dim in self.times]
        return along_time[-1] if along_time else counts.index(max(counts))

    @property
    def _counts(self) -> list[int]:
        return [len(self.predictor.layout.axes[dim].starts) for dim in self.predictor.samples]

    @cached_property
    def _steps(self) -> list[int]:
        """The number of windows (by dimension of samples) and tiles (by axis of space) in a block."""
        predictor, least, steps = self.predictor, [], []
        for place, dim in enumerate(predictor.samples):
            axis, is_batch = predictor.layout.axes[dim], place == self._batch_dim
            least.append(predictor.batch if is_batch else 1)
            points = max(self._chunk(dim) // 2, 2 * (axis.input_size - axis.size))
            windows = points // axis.stride if self.most is None else min(points // axis.stride, self.most)
            steps.append(least[-1] * max(1, windows // least[-1]) if is_batch else 1)
        for dim, tiles in zip(predictor.layout.space, predictor.tiles, strict=True):
            least.append(1)
            steps.append(-(-self._chunk(dim) // tiles.core))
        for place, (length, few) in enumerate(zip(self._lengths, least, strict=True)):
            steps[place] = min(steps[place], -(-length // few) * few)
        most = max(BLOCK_BYTES, *(_chunk_bytes(array) // 2 for array in self.arrays.values()))
        while self._bytes(steps) > most and steps != least:
            place = max(range(len(steps)), key=lambda place: steps[place] / least[place])
            steps[place] = -(-steps[place] // (2 * least[place])) * least[place]
        return steps

    def _bytes(self, steps: Sequence[int]) -> int:
        predictor, samples = self.predictor, len(self.predictor.samples)
        points = {
            dim: predictor.layout.axes[dim].input_size + (step - 1) * predictor.layout.axes[dim].stride
            for dim, step in zip(predictor.samples, steps, strict=False)
        }
        cores = [tiles.core * step for tiles, step in zip(predictor.tiles, steps[samples:], strict=True)]
        for dim, tiles, core in zip(predictor.layout.space, predictor.tiles, cores, strict=True):
            points[dim] = min(tiles.length, core + tiles.size - tiles.core)
        read = sum(math.prod(points[dim] for dim in part.reader.dims) for part in predictor.variables)
        return 4 * (read + math.prod(steps[:samples]) * predictor.channels * math.prod(cores))

    @property
    def _lengths(self) -> list[int]:
        return [*self._counts, *map(len, self.predictor.tiles)]

    def _ranges(self) -> list[list[Range]]:
        return [
            [(first, min(first + step, length) - 1) for first in range(0, length, step)]
            for length, step in zip(self._lengths, self._steps, strict=True)
        ]

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The chunks of the prediction (windows ..., C', points of space ...)."""
        ranges, samples = self._ranges(), len(self.predictor.samples)
        windows = [tuple(last - first + 1 for first, last in each) for each in ranges[:samples]]
        points = [
            tuple(sum(tiles.chunks[first : last + 1]) for first, last in each)
            for tiles, each in zip(self.predictor.tiles, ranges[samples:], strict=True)
        ]
        return (*windows, (self.predictor.channels,), *points)

    def _blocks(self) -> Iterator[tuple[tuple[int, ...], PredictionBlock]]:
        samples = len(self.predictor.samples)
        for chosen in product(*(enumerate(ranges) for ranges in self._ranges())):
            index, ranges = tuple(place for place, _ in chosen), tuple(each for _, each in chosen)
            yield (*index[:samples], 0, *index[samples:]), PredictionBlock(ranges[:samples], ranges[samples:])

    def plans(self) -> Iterator[BlockPlan]:
        """Yield the plan of each block."""
        for position, block in self._blocks():
            selections = {part.name: self.predictor.points(part, block) for part in self.predictor.variables}
            yield BlockPlan(position, selections, (block,))

    def plans_of_lead(self, rollout: FieldRollout, lead: int) -> Iterator[BlockPlan]:
        """Yield the plan of each block of a lead."""
        for position, block in self._blocks():
            selections = {part.name: rollout.points(part, block, lead) for part in self.predictor.variables}
            selections |= {f"lead {number}": rollout.prediction_points(block) for number in rollout.earlier(lead)}
            yield BlockPlan(position, selections, (block, lead))


def _chunk_bytes(array: da.Array) -> int:
    return int(array.dtype.itemsize * math.prod(max(sizes, default=0) for sizes in array.chunks))
