"""kLeadRecord and kLeadLabels: the record of one lead, which has predictions of earlier leads, and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Natural
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, LabelFormat, Labels
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.interface.reach import Reach
from dsinga.layers.interface.region import Region
from dsinga.layers.records.label import required_labels
from dsinga.ops import Ops
from dsinga.ops.types import is_on_device


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
        if not self.source_shapes or {len(settings.channel)} != {
            len(numbers) for numbers in (settings.source, settings.mask, settings.fill)
        }:
            raise self.fail("needs a source, and as many of source, channel, mask and fill", settings, "channel")
        if max(settings.source, default=0) >= len(self.source_shapes):
            raise self.fail(
                f"has {len(self.source_shapes)} sources, not {max(settings.source) + 1}", settings, "source"
            )
        rows, _, *space = self.source_shapes[0]
        for number, shape in enumerate(self.source_shapes):
            channels = [
                channel for source, channel in zip(settings.source, settings.channel, strict=True) if source == number
            ]
            if len(shape) < 2 or shape[2:] != tuple(space) or max(channels, default=0) >= shape[1]:
                raise self.fail(
                    f"takes fields of {as_text(space) or 'single'} points with at least "
                    f"{max(channels, default=0) + 1} channels, but {self.source_name(number)} gives {as_text(shape)}",
                    field="srclayers",
                )
        self.shape = (rows, len(settings.channel), *space)
        self._runs = list(self._find_runs())

    def _find_runs(self) -> Sequence[_ChannelRun]:
        settings = self.settings
        channels = list(zip(settings.source, settings.channel, settings.mask, settings.fill, strict=True))
        ends = [0]
        for place, (before, after) in enumerate(pairwise(channels), 1):
            follows = after[0] == before[0] and after[1] == before[1] + 1 and after[3] == before[3]
            masked = after[2] == before[2] + 1 if before[2] >= 0 else after[2] < 0
            if not (follows and masked):
                ends.append(place)
        return [
            _ChannelRun(
                source,
                slice(start, stop),
                slice(channel, channel + stop - start),
                slice(mask, mask + stop - start) if mask >= 0 else None,
                fill,
            )
            for start, stop in pairwise([*ends, len(channels)])
            for source, channel, mask, fill in [channels[start]]
        ]

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


@register("layer", kLeadLabels=894)
class LeadLabels(Layer):
    """The labels of one lead, some channels of those of the source, (B, C, *space); the feature is the same as float32.

    With ``weighted`` the last channel of all labels, the weights of points, is the last channel of each lead, too.
    """

    class Conf(Settings):
        """Settings of kLeadLabels."""

        first: Natural = setting(0, "the first channel of the lead")
        count: Count = required("the number of channels of the lead, without weights")
        weighted: bool = setting(False, "whether the last channel of all labels has weights, which each lead has")

    settings: Conf
    source_count = 1
    labels = Labels(source=0, floats=True)
    new_labels = LabelFormat()
    cut = Cut(gathered_because="has the labels of whole rows", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings, whole = self.settings, self.source_shapes[0]
        if len(whole) < 2 or whole[1] - settings.weighted < settings.first + settings.count:
            raise self.fail(
                f"takes channels up to {settings.first + settings.count} of labels, but {self.source_name(0)} gives "
                f"{as_text(whole)}",
                settings,
                "count",
            )
        self.shape = (whole[0], settings.count + settings.weighted, *whole[2:])
        self.new_labels = LabelFormat(self.shape[1:], np.float32)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        """Return the part that makes a feature of a region; it has the labels of all points."""
        return self.copy_for_region(region, source_shapes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        whole, settings = required_labels(self, sources[0]), self.settings
        labels = whole[:, settings.first : settings.first + settings.count]
        if settings.weighted:
            xp = ctx.ops.xp if is_on_device(whole) else np
            labels = xp.concatenate([labels, whole[:, -1:]], axis=1)
        feature = labels if self.region is None else self.region.take(labels)
        return Output(ctx.ops.asarray(feature.astype(np.float32)), labels=labels)
