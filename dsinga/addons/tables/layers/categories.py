"""kCategories: codes of categories as one-hot vectors (few codes) or embeddings (many codes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Natural
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.ops import SparseRows
from dsinga.ops.recorded_array import recorder
from dsinga.ops.types import is_on_device

ONE_HOT = 8  # the most codes of a category that is a one-hot vector
WIDTH = 8  # the numbers of the embedding of another


@register("layer", kCategories=906)
class Categories(Layer):
    """Turns codes (B, c) of c categories into numbers (B, n): first one-hot vectors, then embeddings.

    The codes of category i are 0 to ``size[i]`` - 1. A category with at most ``one_hot`` codes becomes a one-hot
    vector. Another category becomes ``width`` numbers, a row of the param weight (codes of all these categories,
    width).
    """

    class Conf(Settings, needed=True):
        """Settings of kCategories."""

        size: list[Count] = setting([], "the number of codes of each category, in the order of the source")
        one_hot: Natural = setting(ONE_HOT, "the most codes of a category that is a one-hot vector")
        width: Count = setting(WIDTH, "how many numbers the embedding of a category has")

    settings: Conf
    source_count = 1
    takes_codes = True
    cut = Cut(gathered_because="makes all columns of a category from one code")

    @staticmethod
    def widths(settings: Conf) -> list[int]:
        """Return how many numbers each category becomes, in the order of the feature."""
        few = [size for size in settings.size if size <= settings.one_hot]
        return few + [settings.width] * (len(settings.size) - len(few))

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, columns = self.expect_axes((2,), "the codes of categories (batch, categories)")
        because = f"{self.source_name(0)} gives {columns}; give the number of codes of each"
        self.expect_numbers("size", (columns,), because)
        self.sizes = np.array(settings.size)
        few = self.sizes <= settings.one_hot
        self.few, self.many = np.flatnonzero(few), np.flatnonzero(~few)
        self.column_of_unit = np.repeat(self.few, self.sizes[few])
        self.code_of_unit = np.concatenate([[], *map(np.arange, self.sizes[few])])
        self.starts = np.cumsum(self.sizes[self.many]) - self.sizes[self.many]  # of each category's rows in the table
        self.shape = (rows, sum(self.widths(settings)))
        if len(self.many):
            self.params = (ParamSpec("weight", (int(self.sizes[self.many].sum()), settings.width), None),)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        codes, ops = sources[0], ctx.ops
        self._check(codes, ctx)
        dtype = params[0].dtype if params else codes.dtype
        one_hot = codes[:, ops.asarray(self.column_of_unit)] == ops.asarray(self.code_of_unit.astype(codes.dtype))
        if not params:
            return Output(one_hot.astype(dtype))
        rows = codes[:, ops.asarray(self.many)].astype(np.int64) + ops.asarray(self.starts)
        vectors = ops.embedding(params[0], rows).reshape(len(codes), len(self.many) * self.settings.width)
        y = ops.xp.concatenate([one_hot.astype(dtype), vectors], axis=1)
        return Output(y, saved=rows if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        def compute(rows: Array, dy: Array) -> Array:
            found, values = map(ctx.ops.to_numpy, ctx.ops.embedding_grad(rows, dy))
            return ctx.ops.asarray(SparseRows(found, values, params[0].shape).dense())

        if not params:
            return (None,), ()
        vectors = grad[:, len(self.column_of_unit) :].reshape(len(grad), len(self.many), self.settings.width)
        if (recorded := recorder()) is None:
            return (None,), (compute(output.saved, vectors),)
        return (None,), (recorded.array_of(compute, output.saved, vectors),)

    def _check(self, source: Array, ctx: Context) -> None:
        if ctx.unread is not None and is_on_device(source):
            return
        codes = ctx.ops.to_numpy(source)
        wrong = (codes < 0) | (codes >= self.sizes) | (codes != np.floor(codes))
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            raise self.fail(
                f"{self.source_name(0)} gives {codes[row, column]:g} for category {column}, whose codes are 0 to "
                f"{self.sizes[column] - 1}; give size the number of codes of each category"
            )
