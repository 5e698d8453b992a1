"""What layers that take characters or words share: which of a source's codes are theirs, and that they are codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf, Message
from dsinga.layers.base import Array, Layer, Shape, times
from dsinga.layers.context import Context, RecordInfo


class CodesLayer(Layer):
    """A layer that takes integers in [0, ``size``): (B, T) of sequences, -1 after the end, or (B,) of one step.

    Of a source with more than ``conf.unroll_len`` steps (kCharRNN gives T + 1) it takes the first; a copy of it in an
    unrolled net takes the step ``conf.unroll_index``.
    """

    source_count: ClassVar[int | None] = 1
    over_steps: ClassVar[bool] = True
    size: int

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        shape = self.source_shapes[0]
        if len(shape) not in (1, 2):
            raise self.fail(
                f"takes one code for each step, (batch, steps), but {self.source_name(0)} gives {times(shape)}",
                field="srclayers",
            )
        self.step = conf.unroll_index if len(shape) == 2 else None
        wanted = (conf.unroll_len or shape[-1]) if self.step is None else self.step + 1
        if len(shape) == 2 and wanted > shape[1]:
            raise self.fail(
                f"takes {wanted} steps, but {self.source_name(0)} gives {shape[1]}; give both the same unroll_len",
                field="srclayers",
            )
        self.codes_shape = (shape[0], wanted) if len(shape) == 2 and self.step is None else shape[:1]

    def codes(self, source: Any, ctx: Context) -> Array:
        """Return the codes that the layer takes, an int64 array of the backend; raise UserError for what is no code."""
        given = ctx.ops.to_numpy(source)
        if given.ndim == 2:
            given = given[:, : self.codes_shape[1]] if self.step is None else given[:, self.step]
        codes = given.astype(np.int64)  # a store may hold them as numbers of any type
        wrong = (codes < -1) | (codes >= self.size) | (codes != given)
        if wrong.any():
            first = given[wrong].flat[0]
            raise self.fail(
                f"{self.source_name(0)} gives {first}, which is none of the codes from 0 to {self.size - 1}; give "
                "vocab_size the number of lines of the vocabulary"
            )
        return ctx.ops.asarray(codes)

    def vocabulary_size(self, settings: Message, size: int) -> int:
        """Return ``size``, the ``vocab_size`` of ``settings``; raise UserError where the job has none."""
        if size < 1:
            raise self.fail("needs vocab_size, the number of different characters or words", settings, "vocab_size")
        return size
