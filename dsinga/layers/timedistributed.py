"""A layer that knows one time step, over whole sequences: all steps of all rows are one batch to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from dsinga.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.context import Columns, Context
from dsinga.layers.contract import make_layer
from dsinga.ops import Ops


class MustUnroll(UserError):
    """A layer whose steps cannot be computed together: its net must be unrolled."""


class TimeDistributed(Layer):
    """(B, T, ...) to (B, T, ...): what T copies of a layer, one for each step, compute, as one batch of B·T rows.

    ``cls`` and ``conf`` are those of each copy. Of the sources that are ``repeated``, which have no steps, every step
    takes the same (B, ...). Where the layer takes labels, steps after the end of a sequence (label -1) are left out.
    The gradient of a loss is that of the sum over steps of means over the batch (``ctx.rows.total`` stays B), a metric
    the mean over steps; random numbers are those of the copies.

    Raises MustUnroll for a layer that keeps a state, hands out parts, or does not compute row by row.
    """

    gathered_because = "computes all time steps together"

    def __init__(
        self, cls: type[Layer], conf: LayerConf, source_shapes: Sequence[Shape], steps: int, repeated: Sequence[bool]
    ):
        super().__init__(conf, source_shapes)
        self.steps = steps
        self.repeated = tuple(repeated)
        shapes = [
            (shape[0] * steps, *shape[1 if again else 2 :])
            for shape, again in zip(source_shapes, repeated, strict=True)
        ]
        self.layer = make_layer(cls, conf, shapes, None)
        if why := _not_by_step(self.layer):
            raise MustUnroll(f"layer {conf.name!r} {why}")
        self.shape = (self.layer.shape[0] // steps, steps, *self.layer.shape[1:])
        self.params = self.layer.params
        for fact in ("label_source", "is_loss", "is_output", "makes_labels"):
            setattr(self, fact, getattr(self.layer, fact))
        self.classes = getattr(self.layer, "classes", None)
        if self.makes_labels:
            self.label_shape = (steps, *self.layer.label_shape)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        flat = self._flatten(sources, ctx.ops)
        inner = self.layer.compute_feature(params, flat.sources, flat.context(ctx))
        feature = None if inner.feature is None else flat.spread(inner.feature)
        labels = None if inner.labels is None else flat.spread(inner.labels, -1)
        return inner._replace(feature=feature, labels=labels, saved=inner if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        flat = self._flatten(sources, ctx.ops)
        dy = None if grad is None else flat.pick(grad)
        for_sources, for_params = self.layer.compute_gradient(
            params, flat.sources, output.saved, dy, needs, flat.context(ctx)
        )
        spread = [None if one is None else flat.spread(one) for one in for_sources]
        return tuple(
            one if one is None or not again else one.sum(axis=1)
            for one, again in zip(spread, self.repeated, strict=True)
        ), for_params

    def _flatten(self, sources: Arrays, ops: Ops) -> _StepRows:
        """Return the sources as the inner layer takes them, without the steps that are not there."""
        chosen = None
        if self.label_source is not None and sources[self.label_source] is not None:
            labels = np.asarray(sources[self.label_source])
            if labels.ndim == 2 and (labels < 0).any():
                chosen = np.flatnonzero(labels.reshape(-1) >= 0)
        rows = len(next(source for source in sources if source is not None))
        there = None if chosen is None else ops.asarray(chosen)
        flat = _StepRows(rows, self.steps, chosen, there, ops)
        taken: list[Any] = []
        for k, source in enumerate(sources):
            if source is None:
                taken.append(None)
            elif k == self.label_source:
                taken.append(flat.repeat(source) if source.ndim == 1 else flat.pick(self._own_labels(source)))
            else:
                taken.append(flat.repeat(source) if self.repeated[k] else flat.pick(source))
        return flat._replace(sources=taken)

    def _own_labels(self, labels: np.ndarray) -> np.ndarray:
        if labels.shape[1] != self.steps:
            raise self.fail(
                f"has {self.steps} time steps, but its labels have {labels.shape[1]}; give both the same unroll_len"
            )
        return labels


class _StepRows(NamedTuple):
    """How (B, T, ...) and the rows of one batch, B·T or those that are ``chosen``, become each other.

    ``there`` are the same numbers as an array of the backend: labels and codes are in host memory, features are not.
    """

    rows: int
    steps: int
    chosen: np.ndarray | None
    there: Array | None
    ops: Ops
    sources: Sequence[Any] = ()

    def some(self, flat: Array) -> Array:
        """Return those of B·T rows that are chosen."""
        if self.chosen is None:
            return flat
        return flat[self.chosen] if isinstance(flat, np.ndarray) else flat[self.there]

    def pick(self, array: Array) -> Array:
        """Return (B, T, ...) as rows."""
        return self.some(array.reshape(self.rows * self.steps, *array.shape[2:]))

    def repeat(self, array: Array) -> Array:
        """Return (B, ...) as rows, each for all steps."""
        return self.some(array.repeat(self.steps, axis=0))

    def spread(self, flat: Array, missing: int = 0) -> Array:
        """Return rows as (B, T, ...), with ``missing`` for those that were not chosen."""
        if self.chosen is not None:
            xp, where = (np, self.chosen) if isinstance(flat, np.ndarray) else (self.ops.xp, self.there)
            some, flat = flat, xp.full_like(flat, missing, shape=(self.rows * self.steps, *flat.shape[1:]))
            flat[where] = some
        return flat.reshape(self.rows, self.steps, *flat.shape[1:])

    def context(self, ctx: Context) -> Context:
        """Return the circumstances of the inner layer."""
        known = {field.name: getattr(ctx, field.name) for field in fields(Context)}
        known |= {"all_reduce": _refuse_collective, "all_gather": _refuse_collective}
        return _StepsContext(**known, flat=self)


@dataclass(frozen=True)
class _StepsContext(Context):
    """A context whose rows are the steps of rows: each step has the random numbers of its copy of the layer."""

    flat: _StepRows | None = None

    def uniform(self, layer: str, columns: int, part: Columns | None = None) -> np.ndarray:
        return self._of_steps(super().uniform, np, layer, columns, part)

    def random(self, layer: str, columns: int, part: Columns | None = None) -> Array:
        return self._of_steps(super().random, self.ops.xp, layer, columns, part)

    def _of_steps(
        self, numbers: Callable[..., Array], xp: Any, layer: str, columns: int, part: Columns | None
    ) -> Array:
        assert self.flat is not None, layer
        copies = [numbers(copy_name(step, layer), columns, part) for step in range(self.flat.steps)]
        return self.flat.some(xp.stack(copies, axis=1).reshape(-1, columns))


def copy_name(step: int, layer: str) -> str:
    """Return the name of the copy of an unrolled layer at a time step, as SINGA gives it."""
    return f"{step}#{layer}"


def _not_by_step(layer: Layer) -> str:
    """Return why the steps of a layer cannot be one batch, or the empty string."""
    if layer.is_input or not layer.source_shapes:
        return "has no source"
    if layer.hands_parts:
        return "hands out parts"
    if layer.whole_because:
        return layer.whole_because
    if not all(spec.trainable for spec in layer.params):
        return "keeps a state, which goes from step to step"
    if layer.shape[0] != layer.source_shapes[0][0]:
        return "has other rows than its source"
    return ""


def _refuse_collective(key: str, array: Array) -> Array:
    raise UserError(
        f"{key}: sums over a batch (ctx.all_reduce, ctx.all_gather) would be over all time steps here, not over those "
        "of one; set over_steps = True in the layer and compute whole sequences (B, T, ...), or give it unroll_len: 1"
    )
