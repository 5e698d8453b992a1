"""The layer kLeadRecord, which makes the record of one lead of the record that is read and earlier predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import Reach
from dsinga.ops import Ops


class _ChannelRun(NamedTuple):
    """Neighbouring channels of the feature that copy those of a source; with a mask, 0 in it means ``fill``."""

    source: int
    target: slice
    channels: slice
    mask: slice | None
    fill: float


@register("layer", kLeadRecord=893)
class LeadRecord(Layer):
    """The record of one lead (B, C, *space), of channels of its sources.

    The first source is the record that is read (B, R, *space), the others are predictions of earlier leads. Where the
    channel of a mask is 0, a prediction is replaced by ``fill``, and gets no gradient. A net that is trained on several
    leads (``leads`` of windows) has such a layer for each lead.
    """

    class Conf(Settings):
        """Settings of kLeadRecord, with a number for each channel of the feature."""

        source: list[Natural] = setting([], "the number of the source of each channel")
        channel: list[Natural] = setting([], "the number of each channel in its source")
        mask: list[int] = setting([], "the channel of the first source with the mask of each channel, -1 for none")
        fill: list[float] = setting([], "the number at masked points of each channel")

    settings: Conf
    cut = Cut(gathered_because="takes channels of several sources", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        channels: tuple[list[Any], ...] = (settings.source, settings.channel, settings.mask, settings.fill)
        if len({len(numbers) for numbers in channels}) > 1 or not 0 <= max(settings.source, default=-1) < len(
            self.source_shapes
        ):
            text = "needs a source, channel, mask and fill for each of its channels, and as many sources as these name"
            raise self.fail(text, settings, "source")
        rows, _, *space = self.source_shapes[0]
        self.shape, self._runs = (rows, len(settings.channel), *space), list(self._find_runs())
        for run in self._runs:
            shape = self.source_shapes[run.source]
            if shape[2:] != tuple(space) or run.channels.stop > shape[1]:
                raise self.fail(
                    f"takes {run.channels.stop} channels of {shape_text(space) if space else 'single'} points, but "
                    f"{self.source_name(run.source)} gives {shape_text(shape)}",
                    field="srclayers",
                )

    def _find_runs(self) -> Iterator[_ChannelRun]:
        settings, start = self.settings, 0
        channels = zip(settings.source, settings.channel, settings.mask, settings.fill, strict=True)
        offsets = [
            (source, channel - place, None if mask < 0 else mask - place, fill)
            for place, (source, channel, mask, fill) in enumerate(channels)
        ]
        for (source, offset, mask, fill), run in groupby(offsets):
            stop = start + len(list(run))
            masks = None if mask is None else slice(start + mask, stop + mask)
            yield _ChannelRun(source, slice(start, stop), slice(start + offset, stop + offset), masks, fill)
            start = stop

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        record, ops = sources[0], ctx.ops
        y = ops.empty((len(record), *self.shape[1:]), record.dtype)
        for run in self._runs:
            y[:, run.target] = sources[run.source][:, run.channels]
            if run.mask is not None:
                y[:, run.target] = ops.xp.where(record[:, run.mask] == 0, y.dtype.type(run.fill), y[:, run.target])
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return tuple(
            self._gradient(number, source, sources[0], grad, ctx.ops) if need else None
            for number, (source, need) in enumerate(zip(sources, needs, strict=True))
        ), ()

    def _gradient(self, number: int, source: Array, record: Array, grad: Array, ops: Ops) -> Array:
        """Return the gradient for a source: the sum of those of the channels that copy each of its channels."""
        dx = ops.empty(source.shape, grad.dtype)
        dx[...] = 0
        for run in self._runs:
            if run.source == number:
                part = grad[:, run.target]
                dx[:, run.channels] += part if run.mask is None else part * (record[:, run.mask] != 0)
        return dx
