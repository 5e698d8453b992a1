"""The blocks of the prediction of a Dataset: which windows and tiles a task computes, and what it reads for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import dask.array as da

from dsinga.addons.fields.prediction.predictor import FieldPredictor, PredictionBlock, Range
from dsinga.addons.fields.prediction.rollout import FieldRollout
from dsinga.addons.fields.prediction.tile_graph import BlockPlan

BLOCK_BYTES = 1 << 26  # that a task reads and gives, at most, where it makes several calls


@dataclass(frozen=True)
class PredictionBlocks:
    """The blocks of a prediction, each computed by one task.

    A block has about a chunk of the variables along each axis of space, and half a chunk of time, or a few times the
    steps that a window reads: so that few tasks decode the same chunk. It has one call of the net at least, and else
    BLOCK_BYTES, or half a chunk, at most. Which calls of the net a task makes does not change what they give.

    ``most`` is the number of windows along time that a block of more than one call has at most, None for any.
    """

    predictor: FieldPredictor
    arrays: Mapping[str, da.Array]
    times: tuple[str, ...]
    most: int | None = None

    def __len__(self) -> int:
        """Return the number of blocks."""
        return math.prod(map(len, self._ranges()))

    def _chunk(self, dim: str) -> int:
        """Return the points of the largest chunk of a variable along a dimension, 1 for none."""
        sizes = [1]
        for part in self.predictor.variables:
            if dim in part.reader.dims:
                sizes += self.arrays[part.name].chunks[part.reader.dims.index(dim)]
        return max(sizes)

    @property
    def _batch_dim(self) -> int | None:
        """The dimension of samples along which the rows of a call lie: that of time, or the longest one."""
        counts = self._counts
        if not counts:
            return None
        along_time = [place for place, dim in enumerate(self.predictor.samples) if dim in self.times]
        return along_time[-1] if along_time else counts.index(max(counts))

    @property
    def _counts(self) -> list[int]:
        """The number of windows along each dimension of samples."""
        return [len(self.predictor.layout.axes[dim].starts) for dim in self.predictor.samples]

    @cached_property
    def _steps(self) -> list[int]:
        """The windows of a block along each dimension of samples, and its tiles along each axis of space."""
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
        """Return the bytes that a block of so many windows and tiles reads and gives."""
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
        """Yield the position of each block in the prediction, and the block."""
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
    """Return the bytes of the largest chunk of an array."""
    return int(array.dtype.itemsize * math.prod(max(sizes, default=0) for sizes in array.chunks))
