"""Predicts several leads (how far ahead) in turn, each with earlier predictions as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.addons.fields.prediction.predictor import FieldPredictor, MemoryReader, PredictionBlock
from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.addons.fields.records.readers import VariableReader


@dataclass(frozen=True)
class FedBack:
    """A target that is also an input: its channels in a prediction, and their dimensions' sizes."""

    channels: slice
    dims: tuple[str, ...]
    sizes: tuple[int, ...]


class FieldRollout:
    """Predicts one lead (how far ahead) after another for the same windows.

    For lead j, the inputs lie (j - 1) leads later. Points after the window are earlier predictions if the variable is
    fed back; other inputs are read or computed at the later times.
    """

    def __init__(self, predictor: FieldPredictor, time: str, fed_back: Mapping[str, FedBack]):
        self.predictor, self.time, self.fed_back = predictor, time, fed_back
        self._axis = predictor.layout.axes[time]
        self._place = predictor.samples.index(time)

    def _times(self, block: PredictionBlock, step: int) -> np.ndarray:
        """Return the time points of each window's inputs in a block, (windows, points of an input)."""
        first, last = block.samples[self._place]
        begins = self._axis.starts[first : last + 1] - self._axis.before + (step - 1) * self._axis.lead
        return begins[:, None] + np.arange(self._axis.input_size)

    def _observed(self, part: ChannelGroup, block: PredictionBlock, step: int) -> np.ndarray:
        """Return which points of :meth:`_times` are read from the data, not fed back."""
        times, first = self._times(block, step), self._times(block, 1)
        return np.full(times.shape, True) if part.name not in self.fed_back else times <= first[:, -1:]

    def points(self, part: ChannelGroup, block: PredictionBlock, step: int) -> tuple[np.ndarray, ...]:
        """Return the increasing points along each dimension of a variable that a block needs for a lead."""
        points = list(self.predictor.points(part, block))
        if self.time in part.reader.dims and step > 1:  # of lead 1 a range, which may have points of no window
            times = self._times(block, step)[self._observed(part, block, step)]
            points[part.reader.dims.index(self.time)] = np.unique(times)
        return tuple(points)

    def prediction_points(self, block: PredictionBlock) -> tuple[np.ndarray, ...]:
        """Return the points of an earlier prediction that a block needs, (windows ..., C', points of space ...)."""
        predictor = self.predictor
        windows = [np.arange(first, last + 1) for first, last in block.samples]
        space = [predictor.space_points(dim, block) for dim in predictor.layout.space]
        return (*windows, np.arange(predictor.channels), *space)

    def earlier(self, step: int) -> range:
        """Return the earlier leads that a lead above 1 uses as inputs."""
        axis = self._axis
        most = -(-axis.input_size // axis.lead)
        return range(max(1, step - most), step)

    def predict(self, values: Mapping[str, np.ndarray], block: PredictionBlock, step: int) -> np.ndarray:
        """Predict a lead for a block, as :meth:`FieldPredictor.predict`.

        For later leads, they include earlier leads, "lead 1" and so on, at :meth:`prediction_points`.
        """
        if step == 1:
            return self.predictor.predict(values, block)
        readers: dict[str, VariableReader] = {}
        for part in self.predictor.layout.inputs:
            reader = part.reader
            if self.time in reader.dims:
                readers[part.name] = self._joined(part, values, block, step)
            elif isinstance(reader, MemoryReader):
                readers[part.name] = MemoryReader(reader, self.points(part, block, step), values[part.name])
        return self.predictor.predict_windows(readers, self._joined_axes(block), block)

    def _joined_axes(self, block: PredictionBlock) -> dict[str, Axis]:
        """Return the axes of samples, with the windows' inputs one after another along time."""
        axis, size = self._axis, self._axis.input_size
        first, last = block.samples[self._place]
        count = last - first + 1
        starts = np.arange(count) * size + axis.before
        time = Axis(axis.name, count * size, axis.size, size, axis.before, axis.after, has_targets=False, starts=starts)
        return {**self.predictor.sample_axes(block), self.time: time}

    def _joined(
        self, part: ChannelGroup, values: Mapping[str, np.ndarray], block: PredictionBlock, step: int
    ) -> MemoryReader:
        reader, times, observed = part.reader, self._times(block, step), self._observed(part, block, step)
        place = reader.dims.index(self.time)
        if not isinstance(reader, MemoryReader):  # a function of coordinates, which go on beyond the data
            low, high = int(times.min()), int(times.max()) + 1
            ranges = [
                slice(low, high) if dim == self.time else slice(0, size)
                for dim, size in zip(reader.dims, reader.shape, strict=True)
            ]
            taken = reader.read(tuple(ranges)).take((times - low).reshape(-1), axis=place)
            points = [np.arange(size) for size in taken.shape]
            return MemoryReader(reader, points, taken)
        points = list(self.points(part, block, step))
        data = values[part.name]
        joined = np.empty((*data.shape[:place], times.size, *data.shape[place + 1 :]), np.float32)
        before: tuple[Any, ...] = (slice(None),) * place
        flat = observed.reshape(-1)
        joined[(*before, flat)] = data.take(np.searchsorted(points[place], times[observed]), axis=place)
        if not flat.all():
            self._feed_back(joined, part, values, times, observed, step)
        points[place] = np.arange(times.size)
        return MemoryReader(reader, points, joined)

    def _feed_back(
        self,
        joined: np.ndarray,
        part: ChannelGroup,
        values: Mapping[str, np.ndarray],
        times: np.ndarray,
        observed: np.ndarray,
        step: int,
    ) -> None:
        fed, dims = self.fed_back[part.name], part.reader.dims
        place = dims.index(self.time)
        predictions: dict[int, np.ndarray] = {}
        for window, point in np.argwhere(~observed):
            ahead = int(times[window, point]) - int(times[window, 0]) + (step - 1) * self._axis.lead - self._axis.before
            lead, offset = divmod(ahead, self._axis.lead)
            if lead not in predictions:
                predictions[lead] = self._by_dims(values[f"lead {lead}"], fed, dims)
            index = (slice(None),) * place + (int(window) * times.shape[1] + int(point),)
            joined[index] = predictions[lead][int(window)].take(offset, axis=place)

    def _by_dims(self, prediction: np.ndarray, fed: FedBack, dims: Sequence[str]) -> np.ndarray:
        """Return the prediction of a variable, (windows of time, *dims), with a window's points along time."""
        samples, space = self.predictor.samples, self.predictor.layout.space
        array: Any = prediction[(slice(None),) * len(samples) + (fed.channels,)]
        array = array.reshape(*array.shape[: len(samples)], *fed.sizes, *array.shape[len(samples) + 1 :])
        array = np.moveaxis(array, self._place, 0)
        array = array.reshape(array.shape[0], *array.shape[len(samples) :])  # of other samples a block has one window
        names = [*fed.dims, *space]
        return array.transpose(0, *(1 + names.index(dim) for dim in dims))
