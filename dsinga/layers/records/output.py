"""Output layers: kArgSort and kAccuracy rank scores; kCSVOutput and kRecordOutput write predictions to files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Layer, Output, Shape, to_matrix
from dsinga.layers.records.label import class_labels


@register("layer", kArgSort=401)
class ArgSort(Layer):
    """Indices (B, topk), int64, of the largest numbers of each row of (B, ...), largest first, ties by index."""

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kArgSort and kAccuracy."""

        topk: Count = setting(1, "how many of the largest numbers of a row count")

    settings: Conf
    source_count = 1
    is_output = True
    cut = Cut(gathered_because="ranks all classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.classes = math.prod(self.source_shapes[0][1:])
        self.topk = self.expect_setting("topk", 1, self.classes, f"there are {self.classes} classes")
        self.shape = (self.source_shapes[0][0], self.topk)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(self.largest(self.scores(sources[0], ctx)))

    def scores(self, source: Array, ctx: Context) -> np.ndarray:
        """Copy the source to host memory as (B, K)."""
        return ctx.ops.to_numpy(to_matrix(source, ctx.ops))

    def largest(self, scores: np.ndarray) -> np.ndarray:
        """Return the indices (B, topk) of the largest numbers of each row."""
        if self.topk == 1:
            return scores.argmax(axis=1)[:, None]
        return np.argsort(-scores, axis=1, kind="stable")[:, : self.topk]


@register("layer", kAccuracy=400)
class Accuracy(ArgSort):
    """The metric "accuracy": the share of rows with their label among the ``topk`` highest scores.

    The sources give scores (B, ...) and labels in [0, K). The feature is kArgSort's.
    """

    source_count = 2
    labels = Labels(source=1, per="row")
    metric_names = ("accuracy",)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = class_labels(self, sources[1], self.classes)
        hits = ctx.ops.hits(to_matrix(sources[0], ctx.ops), ctx.ops.asarray(labels), self.topk)
        largest = self.largest(self.scores(sources[0], ctx))
        return Output(largest, metrics={"accuracy": (hits, len(labels))})


@register("layer", kCSVOutput=402, kRecordOutput=403)
class StoreOutput(Layer):
    """Write the feature of the source to the store of ``store_conf``: text with a line for each record, or zarr.

    kCSVOutput writes text with the ``separator``, kRecordOutput writes zarr. They write in a test or validation of
    training; ``dsinga test --phase P`` and ``evaluate`` write in any phase P of the layer. A later one replaces the
    file.
    """

    source_kind = SourceKind.kVectors
    required_fields = ("store_conf",)
    source_count = 1
    is_output = True
    cut = Cut(gathered_because="writes whole records")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if conf.store_conf is None or not conf.store_conf.path:
            raise self.fail("needs store_conf { path: ... }, where to write", conf.store_conf)
        if conf.store_conf.augment:
            raise self.fail("writes its source and augments nothing; leave augment out", conf.store_conf, "augment")
        self.store = conf.store_conf

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0])
