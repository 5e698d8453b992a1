"""Layers of texts: kCharRNN reads codes, kRNNLabel gives next codes, kRNNDummy random codes, kCharRNNOutput a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.addons.text.text_windows import TextWindows, open_text
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo, Records
from dsinga.layers.interface.declarations import Cut, LabelFormat, SourceKind
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape


class CharRNNConf(Settings, field="char_rnn_conf", needed=True):
    """Settings of kCharRNN, and of kCharRNNOutput, which writes a text."""

    path: str | None = setting(None, "the file of the text")
    vocab_path: str | None = setting(None, "the file of the text's vocabulary")
    unroll_len: Count = setting(50, "the number of time steps")
    batchsize: Count = setting(1, "the number of streams of the text, each with a row of the batch")
    labels: bool = setting(
        False, "whether the next code of each step is its label; the feature then lacks the code after the last step"
    )


@register("layer", kCharRNN=195)
class CharRNN(Layer):
    """Reads codes of a text, (B, T + 1) int64: inputs of ``unroll_len`` = T steps, and the code after the last one.

    From batch to batch, row b continues in its own stretch of the text, T codes further each time, as in SINGA. The
    stretch starts at code b·⌊length / batchsize⌋. At its end the row starts again, and recurrent layers keep their
    state. ``path`` is an imported store or the text itself, which is imported once into a store next to it. With
    ``labels`` the feature is (B, T), for nets that compute whole sequences. The labels (B, T) are the next codes.
    """

    Conf: ClassVar = CharRNNConf
    source_count = 0
    is_input = True
    cut = Cut(gathered_because="reads whole sequences")

    @classmethod
    def open_records(cls, conf: LayerConf, roots: Sequence[str]) -> tuple[TextWindows, RecordInfo]:
        text_conf = conf.char_rnn_conf
        if text_conf is None or not text_conf.path:
            raise (text_conf or conf).error(f"layer {conf.name!r}: char_rnn_conf needs the path of a text")
        store = open_text(text_conf.path, text_conf.vocab_path, roots)
        text = TextWindows(store, text_conf.batchsize, text_conf.unroll_len, text_conf.labels)
        info = RecordInfo(
            text.shape,
            text_conf.batchsize,
            has_labels=text_conf.labels,
            label_shape=text.label_shape,
            **text.codes(),
            continues=True,
        )
        return text, info

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        assert info is not None, "an input layer is made with the RecordInfo of its store"
        self.shape, self.codes = (info.batchsize, *info.shape), info.codes

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        records: Records = sources[0]
        return Output(records.data.astype(np.int64), labels=records.labels)


@register("layer", kRNNLabel=196)
class RNNLabel(Layer):
    """The next code of each step of codes (B, T + 1), as labels (B, T) and as the feature.

    A copy of the layer in an unrolled net has only the code of step ``unroll_index`` + 1, (B,).
    """

    source_count = 1
    new_labels = LabelFormat()
    source_kind = SourceKind.kSequences
    cut = Cut(gathered_because="has one label a step")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        shape, self.step = self.source_shapes[0], conf.unroll_index
        steps = conf.unroll_len or 1
        last = (shape[-1] if steps == 1 else steps + 1) if self.step is None else self.step + 2
        if len(shape) != 2 or shape[1] < max(last, 2):
            raise self.fail(
                f"takes codes (batch, steps + 1), of which it needs {max(last, 2)}, but {self.source_name(0)} gives "
                f"{shape_text(shape)}; give its char_rnn_conf and the net the same unroll_len",
                field="srclayers",
            )
        self.stop = last
        self.shape = (shape[0], last - 1) if self.step is None else shape[:1]
        self.new_labels = LabelFormat(self.shape[1:])

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        codes = codes_of(sources[0], ctx)
        labels = codes[:, 1 : self.stop] if self.step is None else codes[:, self.step + 1]
        return Output(labels, labels=labels)


def codes_of(source: Any, ctx: Context) -> Any:
    """Return a source's codes as int64: in host memory, or on the device during a recording."""
    return (source if ctx.unread is not None else ctx.ops.to_numpy(source)).astype(np.int64)


@register("layer", kRNNDummy=505)
class RNNDummy(Layer):
    """Random numbers of ``rnn_dummy_conf.shape`` from ``low`` to ``high``, or the source's feature if there is one.

    ``integer`` rounds them down to codes, with which a text starts. When a text is generated, the feature of the layer
    ``dynamic_srclayer`` at the step before replaces them.
    """

    class Conf(Settings, field="rnn_dummy_conf"):
        """Settings of kRNNDummy."""

        dynamic_srclayer: str | None = setting(
            None, "the layer with the feature that replaces the numbers in generation"
        )
        shape: list[Count] = setting([], "the shape of the numbers, the batch first")
        integer: bool = setting(False, "whether the numbers are rounded down")
        low: float = setting(0.0, "the lowest number")
        high: float = setting(0.0, "what all numbers are below")

    settings: Conf
    cut = Cut(gathered_because="has the shape that the job gives it")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if self.source_shapes:
            self.expect_sources(1)
            return
        self.shape = tuple(self.settings.shape)
        if not self.shape:
            raise self.fail("has no source layer and makes numbers; give it a shape, batch first", self.settings)
        if not self.settings.low < self.settings.high:
            raise self.fail("makes numbers at random; give low and high, low below high", self.settings)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if sources:
            return Output(sources[0])
        low, high = self.settings.low, self.settings.high
        numbers = low + (high - low) * ctx.ops.to_numpy(self.random(ctx)).astype(np.float64)
        if self.settings.integer:
            numbers = np.minimum(np.floor(numbers), np.ceil(high) - 1)
        return Output(ctx.ops.asarray(numbers.astype(np.float32).reshape(-1, *self.shape[1:])))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return [grad if need else None for need in needs], ()


@register("layer", kCharRNNOutput=404)
class CharRNNOutput(Layer):
    """Marks the source's codes as a text, which ``dsinga generate`` writes."""

    Conf: ClassVar = CharRNNConf
    source_count = 1
    is_output = True
    cut = Cut(gathered_because="writes whole records")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0])
