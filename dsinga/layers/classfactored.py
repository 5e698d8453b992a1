"""kClassSoftmaxLoss: a two-level softmax over a large vocabulary, first over classes of words, then within a class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, ParamSpec, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.labelled_steps import labels_and_places, rows_at, spread
from dsinga.ops.numpy_loss import FLT_MIN
from dsinga.registry import register


class ClassWords(NamedTuple):
    """A class that occurs in a batch: the rows with its words, P(word | class) for all its words, the true words."""

    number: int
    rows: Array
    probabilities: Array
    labels: Array


@register("layer", "kClassSoftmaxLoss")
class ClassSoftmaxLoss(Layer):
    """Cross-entropy by classes of words, -Σ log P(class of the label)·P(label | class) / B.

    Goodman, Classes for fast maximum entropy training (2001), and the loss of SINGA's rnnlm. The first source gives
    (B, n), or (B, T, n) of sequences, the second labels (B,) or (B, T) in [0, ``vocab_size``), -1 after the end of a
    sequence. Class k has the words from ``class_start[k]`` to the start of the next class; words should be numbered by
    falling frequency. Only the words of the classes that occur in the batch are computed. The feature is the
    probability of each label.

    Weights word (vocab_size, n) and class (classes, n). Metrics: "loss", and "entropy", its mean over words, whose
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
        labels, where = labels_and_places(self, sources[1], self.classes)
        x = rows_at(sources[0], where, ctx)
        classes = np.searchsorted(self.bounds, labels, "right") - 1
        ops, xp = ctx.ops, ctx.ops.xp
        by_class, true_classes = ops.softmax(ops.inner_product(x, params[1], None)), ops.asarray(classes)
        probabilities = by_class[xp.arange(len(labels)), true_classes]
        words_by_class = list(self._words_by_class(x, labels, classes, params[0], ctx))
        for words in words_by_class:
            probabilities[words.rows] *= words.probabilities[xp.arange(len(words.labels)), words.labels]
        loss = -xp.log(xp.maximum(probabilities, FLT_MIN)).sum(dtype=np.float64)
        saved = (where, x, true_classes, by_class, words_by_class) if ctx.training else None
        metrics = {"loss": (loss, len(sources[0])), "entropy": (loss, len(labels))}
        return Output(spread(probabilities, where, sources[0].shape[:-1], ctx), saved=saved, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        where, x, true_classes, by_class, words_by_class = output.saved
        ops, factor = ctx.ops, 1 / ctx.rows.total
        scores = ops.softmax_loss_grad(by_class, true_classes, factor)
        dx, dclass, _ = ops.inner_product_grad(x, params[1], scores, False, needs[0], False)
        dword = ops.xp.zeros_like(params[0])
        for words in words_by_class:
            start, stop = self.bounds[words.number : words.number + 2]
            scores = ops.softmax_loss_grad(words.probabilities, words.labels, factor)
            weight, rows = params[0][start:stop], x[words.rows]
            drows, dword[start:stop], _ = ops.inner_product_grad(rows, weight, scores, False, needs[0], False)
            if dx is not None:
                dx[words.rows] += drows
        if dx is None:
            return (None, None), (dword, dclass)
        return (spread(dx, where, sources[0].shape, ctx), None), (dword, dclass)

    def _words_by_class(
        self, x: Array, labels: np.ndarray, classes: np.ndarray, words: Array, ctx: Context
    ) -> Iterator[ClassWords]:
        """Yield the word probabilities of each class that occurs in the batch."""
        order = np.argsort(classes, kind="stable")
        numbers, begins = np.unique(classes[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, begins)[1:], strict=True):
            start, stop = self.bounds[number : number + 2]
            class_rows = ctx.ops.asarray(rows)
            p = ctx.ops.softmax(ctx.ops.inner_product(x[class_rows], words[start:stop], None))
            yield ClassWords(number, class_rows, p, ctx.ops.asarray(labels[rows] - start))
