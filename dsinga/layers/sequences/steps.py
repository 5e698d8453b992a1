"""kSequenceLength finds where sequences end; windows of steps, for convolution and pooling that respect lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, LabelFormat, Labels, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.records.label import check_ends, step_lengths
from dsinga.ops.recorded_array import host_array


@register("layer", kSequenceLength=740)
class SequenceLength(Layer):
    """Marks where sequences end: passes codes (B, T), -1 after the end, on as feature and as labels of the steps.

    Use it as the last source of layers that need lengths if the records' labels are something else, such as one class
    for each sentence.

    With ``end``, this code also stands for steps after the end, such as the 0 of padded sequences in Keras. With
    ``anywhere``, such steps may be before others, which move forward. With ``mask_value`` the source has features (B,
    T, n), which it passes on; a step with this value in all features is after the end, as in Keras's Masking.
    """

    class Conf(Settings):
        """Settings of kSequenceLength."""

        end: Natural | None = setting(None, "a code of steps after the end, in addition to -1")
        anywhere: bool = setting(False, "whether steps of the code end may be before others, which move forward")

        mask_value: float | None = setting(None, "the number that all features have at the steps after the end")

    settings: Conf
    source_count = 1
    source_kind = SourceKind.kSequences
    new_labels = LabelFormat()
    cut = Cut(gathered_because="has one code for each step")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        remedy = "give it the input layer of the words, below their kEmbedding"
        if self.settings.mask_value is not None:
            self.expect_axes((3,), "sequences (batch, steps, n)", "leave mask_value out for codes")
        else:
            self.expect_axes((2,), "codes (batch, steps)", remedy)
        self.new_labels = LabelFormat(self.shape[1:2], np.dtype(np.int64))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if self.settings.mask_value is not None:
            return self._masked(sources[0], ctx)
        numbers = ctx.ops.to_numpy(sources[0])
        codes = numbers.astype(np.int64)
        if (codes != numbers).any() or (codes < -1).any():
            raise self.fail(f"{self.source_name(0)} gives numbers that are not codes: whole numbers, -1 after the end")
        end = -1 if self.settings.end is None else self.settings.end
        codes[codes == end] = -1
        codes, _ = self._in_order(codes, end, ctx)
        return Output(codes, labels=codes)

    def _in_order(self, codes: np.ndarray, end: Any, ctx: Context) -> tuple[np.ndarray, np.ndarray | None]:
        """Move steps that count to the front of each sequence; return the codes and their new order, if any."""
        order, real = None, codes >= 0
        if self.settings.anywhere and (real[:, 1:] > real[:, :-1]).any():
            order = np.argsort(codes < 0, axis=1, kind="stable")
            codes = np.take_along_axis(codes, order, axis=1)
        lengths = check_ends(self, codes, self.source_name(0), end)
        if not lengths.all():
            row = ctx.rows.start + int(np.argmin(lengths))
            raise self.fail(
                f"row {row} of the batch is an empty sequence, {end} throughout; leave such records out of "
                f"the store of {self.source_name(0)}"
            )
        return codes, order

    def _masked(self, x: Array, ctx: Context) -> Output:
        """Move the steps that count to the front, and return the features with their lengths as labels."""
        value = self.settings.mask_value
        codes = -ctx.ops.to_numpy((x == value).all(axis=-1)).astype(np.int64)
        codes, order = self._in_order(codes, f"{value:g}", ctx)
        feature = x if order is None else ctx.ops.xp.take_along_axis(x, ctx.ops.asarray(order)[..., None], 1)
        return Output(feature, labels=codes, saved=order)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if self.settings.mask_value is None or not needs[0]:
            return (None,), ()
        if output.saved is None:
            return (grad,), ()
        places = ctx.ops.asarray(np.argsort(output.saved, axis=1))
        return (ctx.ops.xp.take_along_axis(grad, places[..., None], 1),), ()


class StepWindows(NamedTuple):
    """Windows of ``kernel`` steps that begin every ``stride`` steps, with zeros before the first and after the last.

    A sequence has at least one window unless it is empty. Neighbours in a window are ``dilation`` steps apart.
    """

    kernel: int
    stride: int
    before: int = 0
    after: int = 0
    dilation: int = 1

    @property
    def extent(self) -> int:
        """How many steps a window covers, gaps included."""
        return (self.kernel - 1) * self.dilation + 1

    def count(self, length: Any) -> Any:
        """Return how many windows sequences of ``length`` steps have; ``length`` may be an array."""
        full = np.maximum(length + self.before + self.after - self.extent, 0) // self.stride + 1
        return np.where(host_array(length) > 0, full, 0)

    def starts(self, length: int) -> np.ndarray:
        """Return the first step of each window over ``length`` steps; negative if it begins before the sequence."""
        return np.arange(int(self.count(length))) * self.stride - self.before


class WindowLayer(Layer):
    """Base of layers that compute steps (B, T', F) from windows of steps (B, T, n).

    The labels (B, T) of the optional second source give the sequence lengths. Steps after the end count as zeros, and
    windows after the end give zeros. With lengths, the layer makes its own labels (B, T'): 0, and -1 after the end.
    """

    source_count = 1
    optional_sources = 1
    source_kind = SourceKind.kSequences
    labels = Labels(source=1)
    windows: StepWindows

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        if len(source_shapes) < 2:
            self.labels = Labels()
        super().__init__(conf, source_shapes, info)
        remedy = "put a kEmbedding layer between, if these are characters or words"
        self.steps = self.expect_axes((3,), "sequences (batch, steps, n)", remedy)[1]
        if self.labels.source is not None and self.source_shapes[1][1:] != (self.steps,):
            raise self.fail(
                f"takes the lengths of sequences of {self.steps} steps from labels (batch, {self.steps}), but those of "
                f"{self.source_name(1)} are {shape_text(self.source_shapes[1])}; give it a kSequenceLength layer over "
                "the words, or the layer whose labels are of the steps",
                field="srclayers",
            )

    def set_windows(self, windows: StepWindows) -> int:
        """Set the windows and declare the labels (B, T') if there are lengths; return the number of windows T'."""
        self.windows = windows
        count = int(windows.count(self.steps))
        if self.labels.source is not None:
            self.new_labels = LabelFormat((count,), np.dtype(np.int64))
        return count

    def lengths(self, sources: Arrays) -> np.ndarray | None:
        """Return the sequence lengths (B,); None if all have T steps."""
        if self.labels.source is None:
            return None
        lengths = step_lengths(self, sources[1], self.steps)
        return None if (lengths == self.steps).all() else lengths

    def window_labels(self, lengths: np.ndarray | None, rows: int) -> np.ndarray | None:
        """Return labels (B, T') that mark windows after the end by -1; None without lengths."""
        if self.new_labels is None:
            return None
        (count,) = self.new_labels.shape
        if lengths is None:
            return np.zeros((rows, count), np.int64)
        return np.where(np.arange(count) < self.windows.count(lengths)[:, None], 0, -1)
