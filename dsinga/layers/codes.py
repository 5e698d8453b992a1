"""Base of the layers that take characters or words as integer codes: kOneHot and kEmbedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf, Message
from dsinga.layers.base import Array, Layer, Shape, as_text
from dsinga.layers.context import Context, RecordInfo


class CodesLayer(Layer):
    """A layer whose source gives codes in [0, ``size``): (B, T) of sequences, -1 after the end, or (B,) of one step.

    From a source with more than ``conf.unroll_len`` steps (kCharRNN gives T + 1) it takes the first ones; a copy of it
    in an unrolled net takes the step ``conf.unroll_index``.
    """

    source_count: ClassVar[int | None] = 1
    over_steps: ClassVar[bool] = True
    size: int

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        shape = self.source_shapes[0]
        if len(shape) not in (1, 2):
            raise self.fail(
                f"takes one code for each step, (batch, steps), but {self.source_name(0)} gives {as_text(shape)}",
                field="srclayers",
            )
        self.step = conf.unroll_index if len(shape) == 2 else None
        steps = (conf.unroll_len or shape[-1]) if self.step is None else self.step + 1
        if len(shape) == 2 and steps > shape[1]:
            raise self.fail(
                f"takes {steps} steps, but {self.source_name(0)} gives {shape[1]}; give both the same unroll_len",
                field="srclayers",
            )
        self.codes_shape = (shape[0], steps) if len(shape) == 2 and self.step is None else shape[:1]

    def codes(self, source: Any, ctx: Context) -> Array:
        """Return the codes that the layer takes as an int64 array of the backend; raise UserError for other numbers."""
        numbers = ctx.ops.to_numpy(source)
        if numbers.ndim == 2:
            numbers = numbers[:, : self.codes_shape[1]] if self.step is None else numbers[:, self.step]
        codes = numbers.astype(np.int64)  # a store may have numbers of any dtype
        wrong = (codes < -1) | (codes >= self.size) | (codes != numbers)
        if wrong.any():
            first = numbers[wrong].flat[0]
            raise self.fail(
                f"{self.source_name(0)} gives {first}, which is none of the codes from 0 to {self.size - 1}; give "
                "vocab_size the number of different words, users or films, those that training does not see among them"
            )
        return ctx.ops.asarray(codes)

    def vocabulary_size(self, settings: Message, size: int) -> int:
        """Return ``size``, the ``vocab_size`` of ``settings``; raise UserError where the job has none."""
        if size < 1:
            raise self.fail("needs vocab_size, the number of different characters or words", settings, "vocab_size")
        return size
