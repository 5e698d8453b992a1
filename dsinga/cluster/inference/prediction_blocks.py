"""The blocks of the prediction of a Dataset: which windows and tiles a task computes, and what it reads for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import dask.array as da

from dsinga.cluster.inference.tile_graph import BlockPlan
from dsinga.engine.field_predictor import Box, FieldPredictor, Range
from dsinga.engine.field_rollout import FieldRollout


@dataclass(frozen=True)
class PredictionBlocks:
    """The blocks of a prediction, each computed by one task.

    A block has about half a chunk of the variables along each dimension, or one call of the net where that is more:
    so a chunk is decoded by few tasks. Which calls of the net a task makes does not change what they give.
    """

    predictor: FieldPredictor
    arrays: Mapping[str, da.Array]
    times: tuple[str, ...]

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

    @property
    def _steps(self) -> list[int]:
        """The windows of a block along each dimension of samples, and its tiles along each axis of space."""
        predictor, steps = self.predictor, []
        for place, dim in enumerate(predictor.samples):
            batch = predictor.batch if place == self._batch_dim else 1
            windows = self._chunk(dim) // (2 * predictor.layout.axes[dim].stride)
            steps.append(batch * max(1, windows // batch) if place == self._batch_dim else 1)
        for dim, tiles in zip(predictor.layout.space, predictor.tiles, strict=True):
            steps.append(max(1, self._chunk(dim) // (2 * tiles.core)))
        return steps

    def _ranges(self) -> list[list[Range]]:
        lengths = [*self._counts, *map(len, self.predictor.tiles)]
        return [
            [(first, min(first + step, length) - 1) for first in range(0, length, step)]
            for length, step in zip(lengths, self._steps, strict=True)
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

    def _boxes(self) -> Iterator[tuple[tuple[int, ...], Box]]:
        """Yield the position of each block in the prediction, and its box."""
        samples = len(self.predictor.samples)
        for chosen in product(*(enumerate(ranges) for ranges in self._ranges())):
            index, ranges = tuple(place for place, _ in chosen), tuple(each for _, each in chosen)
            yield (*index[:samples], 0, *index[samples:]), Box(ranges[:samples], ranges[samples:])

    def plans(self) -> Iterator[BlockPlan]:
        """Yield the plan of each block."""
        for position, box in self._boxes():
            boxes = {part.name: self.predictor.points(part, box) for part in self.predictor.variables}
            yield BlockPlan(position, boxes, (box,))

    def plans_of_lead(self, rollout: FieldRollout, lead: int) -> Iterator[BlockPlan]:
        """Yield the plan of each block of a lead."""
        for position, box in self._boxes():
            boxes = {part.name: rollout.points(part, box, lead) for part in self.predictor.variables}
            boxes |= {f"lead {number}": rollout.prediction_points(box) for number in rollout.earlier(lead)}
            yield BlockPlan(position, boxes, (box, lead))
