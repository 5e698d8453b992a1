"""kDummy: a placeholder for the input or the output of a net that is built or timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.job import DummyConf, LayerConf
from dsinga.layers.base import Arrays, Connection, Gradients, Layer, Output, Shape
from dsinga.layers.context import Columns, Context, RecordInfo
from dsinga.registry import register


@register("layer", "kDummy")
class Dummy(Layer):
    """Pass on the source; with ``input``, make uniform random numbers in [0, 1) of ``dummy_conf.shape`` instead.

    With ``output`` the layer is an end of the net and has no gradient. (SINGA's has a random gradient, which is no use
    in training.) The random numbers depend on seed, step, layer and global row.
    """

    connection: Connection | None = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        dummy = conf.dummy_conf or DummyConf()
        self.makes_numbers, self.is_output = dummy.input, dummy.output
        if dummy.input:
            self.expect_sources(0)
            if len(dummy.shape) < 2 or min(dummy.shape) < 1:
                raise self.fail("needs dummy_conf { shape: ... }, the batch first, at least two numbers above 0", dummy)
            self.shape, self.connection = tuple(dummy.shape), Connection.kOneToAll  # it has no source
        else:
            self.expect_sources(1)
            self.shape = self.source_shapes[0]

    def cut_conf(self, columns: Columns) -> LayerConf:
        dummy = self.conf.dummy_conf
        if dummy is None or not dummy.input:
            return self.conf
        rows, _, *rest = dummy.shape
        return self.conf.replace(dummy_conf=dummy.replace(shape=[rows, columns.stop - columns.start, *rest]))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if not self.makes_numbers:
            return Output(sources[0])
        rows = self.random(ctx)
        return Output(rows if len(self.shape) == 2 else ctx.ops.unflatten(rows, (rows.shape[0], *self.shape[1:])))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return [grad if need else None for need in needs], ()
