"""Applies a layer of one time step to whole sequences, with all steps of all rows as one batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers.dense.innerproduct import InnerProduct
from dsinga.layers.interface.context import Columns, Context
from dsinga.layers.interface.contract import MustUnroll, copy_name, make_layer
from dsinga.layers.interface.declarations import Bfloat16, Cut
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.ops import Ops
from dsinga.ops.layout import contiguous
from dsinga.ops.recorded_array import host_array
from dsinga.ops.types import NotCapturable, Shaped, is_on_device


class TimeDistributed(Layer):
    """Apply a layer to each step of sequences (B, T, ...), as one batch of B·T rows.

    It computes the same as T copies of the layer, one for each step; ``cls`` and ``conf`` are each copy's. Every step
    reads the same (B, ...) of a ``repeated`` source. If the layer reads labels, steps after the end of a sequence
    (label -1) are left out. A loss sums over steps the mean over the batch (``ctx.rows.total`` stays B). A metric is
    the mean over steps.

    Raises MustUnroll for a layer that does not compute row by row.
    """

    def __init__(
        self, cls: type[Layer], conf: LayerConf, source_shapes: Sequence[Shape], steps: int, repeated: Sequence[bool]
    ):
        super().__init__(conf, source_shapes)
        self.steps = steps
        self.repeated = tuple(repeated)
        shapes = [
            (shape[0] * steps, *(() if k == cls.labels.source else shape[1 if is_repeated else 2 :]))
            for k, (shape, is_repeated) in enumerate(zip(source_shapes, repeated, strict=True))
        ]
        self.layer = make_layer(cls, conf, shapes, None)
        if why := _not_by_step(self.layer):
            raise MustUnroll(f"layer {conf.name!r} {why}")
        self.shape = (self.layer.shape[0] // steps, steps, *self.layer.shape[1:])
        self.params = self.layer.params
        connection, axis, reason = self.layer.cut.connection, self.layer.cut.axis, self.layer.cut.gathered_because
        if connection is not None and any(repeated):
            connection, reason = None, "takes a source without steps"
        self.cut = Cut(connection, axis + 1, gathered_because=reason)
        for attribute in ("metric_names", "is_loss", "is_output"):
            setattr(self, attribute, getattr(self.layer, attribute))
        if self.layer.bf16 is not Bfloat16.kNothing:
            is_product = type(self.layer) is InnerProduct
            self.bf16 = self.layer.bf16 if is_product else Bfloat16.kProducts
            self.rounds_source, self.rounds_gradient = self.layer.rounds_source, self.layer.rounds_gradient
        needs_all = self.layer.labels.source is not None or any(repeated)
        self.keeps = self.layer.keeps if not needs_all else replace(self.layer.keeps, sources=None)
        self.classes = getattr(self.layer, "classes", None)
        self.labels = replace(self.layer.labels, per=None)
        if labels := self.layer.new_labels:
            self.new_labels = replace(labels, shape=(steps, *labels.shape))

    @property
    def columns(self) -> Columns | None:
        """The columns of the whole layer that this worker computes at each step; None for all."""
        return self.layer.columns

    @columns.setter
    def columns(self, columns: Columns | None) -> None:
        self.layer.columns = columns

    def cut_conf(self, columns: Columns) -> LayerConf:
        return self.layer.cut_conf(columns)

    def part(self, conf: LayerConf, source_shapes: Sequence[Shape]) -> Layer:
        return TimeDistributed(type(self.layer), conf, source_shapes, self.steps, self.repeated)

    def rounding(self) -> TimeDistributed:
        """Return a copy that gives its feature in bfloat16, in a job with that precision."""
        copied = copy.copy(self)
        copied.layer = copy.copy(self.layer)
        copied.rounds_feature = copied.layer.rounds_feature = True
        return copied

    def saved_sizes(self, rows: int) -> list[int]:
        return self.layer.saved_sizes(rows * self.steps)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        flat = self.flatten_steps(sources, ctx.ops)
        inner = self.layer.compute_feature(params, flat.sources, flat.context(ctx))
        feature = inner.feature if self.rounds_feature else ctx.ops.to_float32(inner.feature)
        feature = None if feature is None else flat.spread(feature)
        labels = None if inner.labels is None else flat.spread(inner.labels, -1)
        saved = inner if self.keeps.feature else inner._replace(feature=None)
        return inner._replace(feature=feature, labels=labels, saved=saved if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        flat = self.flatten_steps(sources, ctx.ops)
        dy = None if grad is None else flat.pick(grad)
        for_sources, for_params = self.layer.compute_gradient(
            params, flat.sources, output.saved, dy, needs, flat.context(ctx)
        )
        spread = [None if gradient is None else flat.spread(gradient) for gradient in for_sources]
        return tuple(
            gradient if gradient is None or not is_repeated else gradient.sum(axis=1)
            for gradient, is_repeated in zip(spread, self.repeated, strict=True)
        ), for_params

    def flatten_steps(self, sources: Arrays, ops: Ops) -> _StepRows:
        """Return the sources as rows for the inner layer, without steps after the ends of sequences."""
        chosen = None
        if self.labels.source is not None and sources[self.labels.source] is not None:
            labels = sources[self.labels.source]
            if is_on_device(labels):
                self._check_on_device()
            labels = labels if is_on_device(labels) else host_array(labels)
            if not is_on_device(labels) and labels.ndim == 2 and labels.dtype.kind != "f" and (labels < 0).any():
                chosen = np.flatnonzero(labels.reshape(-1) >= 0)
        rows = next(source.shape[0] for source in sources if source is not None)
        device_chosen = None if chosen is None else ops.asarray(chosen)
        flat = _StepRows(rows, self.steps, chosen, device_chosen, ops)
        inner_sources: list[Any] = []
        for k, source in enumerate(sources):
            if source is None:
                inner_sources.append(None)
            elif k == self.labels.source:
                inner_sources.append(flat.repeat(source) if source.ndim == 1 else flat.pick(self._check_labels(source)))
            else:
                inner_sources.append(flat.repeat(source) if self.repeated[k] else flat.pick(source))
        return flat._replace(sources=inner_sources)

    def _check_on_device(self) -> None:
        """Raise NotCapturable if labels are on the device, unless the loss itself detects steps after the end."""
        if not self.layer.marks_wrong_labels:
            raise NotCapturable("sequences have different lengths")

    def _check_labels(self, labels: np.ndarray) -> np.ndarray:
        if labels.shape[1] != self.steps:
            raise self.fail(
                f"has {self.steps} time steps, but its labels have {labels.shape[1]}; give both the same unroll_len"
            )
        return labels


class _StepRows(NamedTuple):
    """Converts sequences (B, T, ...) to rows of one batch and back, for all B·T steps or only the ``chosen``."""

    rows: int
    steps: int
    chosen: np.ndarray | None
    device_chosen: Array | None
    ops: Ops
    sources: Sequence[Any] = ()

    def choose(self, flat: Array) -> Array:
        """Select the chosen rows of B·T rows."""
        if self.chosen is None:
            return flat
        return flat[self.chosen] if isinstance(flat, np.ndarray) else flat[self.device_chosen]

    def pick(self, array: Array) -> Array:
        """Flatten (B, T, ...) and select the chosen rows."""
        if isinstance(array, Shaped):
            return replace(array, shape=(self.rows * self.steps, *array.shape[2:]))
        array = contiguous(array) if array.ndim == 3 else array
        return self.choose(array.reshape(self.rows * self.steps, *array.shape[2:]))

    def repeat(self, array: Array) -> Array:
        """Repeat rows (B, ...) for all steps, and select the chosen rows."""
        return self.choose(array.repeat(self.steps, axis=0))

    def spread(self, flat: Array, missing: int = 0) -> Array:
        """Put chosen rows back as (B, T, ...), with ``missing`` elsewhere."""
        if self.chosen is not None:
            xp, where = (np, self.chosen) if isinstance(flat, np.ndarray) else (self.ops.xp, self.device_chosen)
            chosen_rows, flat = flat, xp.full_like(flat, missing, shape=(self.rows * self.steps, *flat.shape[1:]))
            flat[where] = chosen_rows
        return flat.reshape(self.rows, self.steps, *flat.shape[1:])

    def context(self, ctx: Context) -> Context:
        """Return the context for the inner layer, with steps as rows."""
        fields_of_ctx = {field.name: getattr(ctx, field.name) for field in fields(Context)}
        fields_of_ctx |= {"all_reduce": _refuse_collective, "all_gather": _refuse_collective}
        return _StepsContext(**fields_of_ctx, flat=self)


@dataclass(frozen=True)
class _StepsContext(Context):
    """A context with steps as rows, so that each step has the random numbers of its copy of the layer."""

    flat: _StepRows | None = None

    def uniform(self, layer: str, columns: int, part: Columns | None = None) -> np.ndarray:
        return self._of_steps(super().uniform, np, layer, columns, part)

    def random(self, layer: str, columns: int, part: Columns | None = None) -> Array:
        return self._of_steps(super().random, self.ops.xp, layer, columns, part)

    def _of_steps(
        self, numbers: Callable[..., Array], xp: Any, layer: str, columns: int, part: Columns | None
    ) -> Array:
        assert self.flat is not None, layer
        steps, copies = self.flat.steps, None
        for step in range(steps):  # not by stack, for which CuPy copies many addresses to the device
            copy = numbers(copy_name(step, layer), columns, part)
            copies = xp.empty((len(copy), steps, columns), copy.dtype) if copies is None else copies
            copies[:, step] = copy
        assert copies is not None
        return self.flat.choose(copies.reshape(-1, columns))


def _not_by_step(layer: Layer) -> str:
    """Say why the steps of a layer cannot be one batch, or ""."""
    if layer.is_input or not layer.source_shapes:
        return "has no source"
    if layer.part_shapes:
        return "hands out parts"
    if layer.cut.whole_because:
        return layer.cut.whole_because
    if not all(spec.trainable for spec in layer.params):
        return "keeps a state, which goes from step to step"
    if layer.shape[0] != layer.source_shapes[0][0]:
        return "has other rows than its source"
    return ""


def _refuse_collective(key: str, array: Array) -> Array:
    raise UserError(
        f"{key}: sums over a batch (ctx.all_reduce, ctx.all_gather) would be over all time steps here, not over those "
        "of one; set source_kind = SourceKind.kSequences and compute whole sequences (B, T, ...), or unroll_len: 1"
    )
