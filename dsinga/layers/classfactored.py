"""kClassSoftmaxLoss: the softmax of a large vocabulary in two steps, a word's class and then the word in its class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, ParamSpec, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.label import class_labels, required_labels
from dsinga.ops.numpy_loss import FLT_MIN
from dsinga.registry import register


class ClassWords(NamedTuple):
    """The words of one class that a batch asks for: rows of the batch, P(word | class) of all words, the right one."""

    number: int
    rows: Array
    probabilities: Array
    right: Array


@register("layer", "kClassSoftmaxLoss")
class ClassSoftmaxLoss(Layer):
    """-Σ log P(class of the label)·P(label | class) / B; the feature is that probability for each label.

    Goodman, Classes for fast maximum entropy training (2001), and the loss of SINGA's rnnlm. The first source gives
    (B, n), or (B, T, n) of sequences, the second labels (B,) or (B, T) in [0, ``vocab_size``), -1 after the end of a
    sequence. Class k has the words from ``class_start[k]`` to the start of the next class: words that are numbered by
    falling frequency make classes of neighbours. Only the words of the classes that occur are computed.

    Weights word (vocab_size, n) and class (classes, n). Metrics: "loss", and "entropy", its mean over words; its
    exponential is the perplexity.
    """

    source_count: ClassVar[int | None] = 2
    label_source: int | None = 1
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "entropy")
    over_steps: ClassVar[bool] = True
    gathered_because = "normalises over all words of a class"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.classsoftmaxloss_conf
        if settings is None:
            raise self.fail("needs classsoftmaxloss_conf { vocab_size: ... class_start: [0, ...] }")
        starts, self.classes = settings.class_start or [0], settings.vocab_size
        if starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= self.classes:
            raise self.fail(
                f"class_start must rise from 0 to less than the {self.classes} words of vocab_size",
                settings,
                "class_start",
            )
        self.bounds = np.array([*starts, self.classes])
        self.shape = self.source_shapes[0][:-1]
        inputs = self.source_shapes[0][-1]
        self.params = (ParamSpec("word", (self.classes, inputs)), ParamSpec("class", (len(starts), inputs)))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels, where = self._labels(sources[1])
        x = self._rows(sources[0], where, ctx)
        classes = np.searchsorted(self.bounds, labels, "right") - 1
        ops, xp = ctx.ops, ctx.ops.xp
        by_class, right = ops.softmax(ops.inner_product(x, params[1], None)), ops.asarray(classes)
        own = by_class[xp.arange(len(labels)), right]
        within = list(self._words_by_class(x, labels, classes, params[0], ctx))
        for one in within:
            own[one.rows] *= one.probabilities[xp.arange(len(one.right)), one.right]
        loss = -xp.log(xp.maximum(own, FLT_MIN)).sum(dtype=np.float64)
        saved = (where, x, right, by_class, within) if ctx.training else None
        metrics = {"loss": (loss, len(sources[0])), "entropy": (loss, len(labels))}
        return Output(self._spread(own, where, sources[0].shape[:-1], ctx), saved=saved, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        where, x, right, by_class, within = output.saved
        ops, factor = ctx.ops, 1 / ctx.rows.total
        scores = ops.softmax_loss_grad(by_class, right, factor)
        dx, dclass, _ = ops.inner_product_grad(x, params[1], scores, False, needs[0], False)
        dword = ops.xp.zeros_like(params[0])
        for one in within:
            start, stop = self.bounds[one.number : one.number + 2]
            scores = ops.softmax_loss_grad(one.probabilities, one.right, factor)
            words, rows = params[0][start:stop], x[one.rows]
            mine, dword[start:stop], _ = ops.inner_product_grad(rows, words, scores, False, needs[0], False)
            if dx is not None:
                dx[one.rows] += mine
        if dx is None:
            return (None, None), (dword, dclass)
        return (self._spread(dx, where, sources[0].shape, ctx), None), (dword, dclass)

    def _labels(self, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels that there are, (N,), and where they are among all rows or steps."""
        flat = required_labels(self, labels).reshape(-1)
        where = np.flatnonzero(flat >= 0) if np.ndim(labels) == 2 else np.arange(len(flat))
        return class_labels(self, flat[where], self.classes), where

    def _rows(self, source: Array, where: np.ndarray, ctx: Context) -> Array:
        """Return (N, n): the rows or steps that have a label."""
        flat = source.reshape(-1, source.shape[-1])
        return flat if len(where) == len(flat) else flat[ctx.ops.asarray(where)]

    def _spread(self, rows: Array, where: np.ndarray, shape: Shape, ctx: Context) -> Array:
        """Return (N, ...) as ``shape``, with zeros for the steps that have no label."""
        whole = ctx.ops.xp.zeros((math.prod(shape[: len(shape) + 1 - rows.ndim]), *rows.shape[1:]), rows.dtype)
        whole[ctx.ops.asarray(where)] = rows
        return whole.reshape(shape)

    def _words_by_class(
        self, x: Array, labels: np.ndarray, classes: np.ndarray, words: Array, ctx: Context
    ) -> Iterator[ClassWords]:
        """Yield what is wanted of each class that occurs."""
        order = np.argsort(classes, kind="stable")
        found, begins = np.unique(classes[order], return_index=True)
        for number, rows in zip(found.tolist(), np.split(order, begins)[1:], strict=True):
            start, stop = self.bounds[number : number + 2]
            mine = ctx.ops.asarray(rows)
            p = ctx.ops.softmax(ctx.ops.inner_product(x[mine], words[start:stop], None))
            yield ClassWords(number, mine, p, ctx.ops.asarray(labels[rows] - start))
