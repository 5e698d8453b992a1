"""Losses over large vocabularies: kClassSoftmaxLoss by classes of words, kSampledLoss by random words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, SamplingMethod
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Members, Natural, NonNegative
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, Labels, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.records.label import class_labels, integer_labels
from dsinga.ops import SparseRows
from dsinga.ops.numpy.elementwise import FLT_MIN
from dsinga.ops.types import NotCapturable, is_on_device


def labels_and_places(layer: Layer, labels: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Collect the labels (N,) of (B,) or (B, T), without steps after the end, and their flat indices (N,)."""
    flat = integer_labels(layer, labels).reshape(-1)
    if is_on_device(flat):
        raise NotCapturable("the host chooses words by the labels")
    places = np.flatnonzero(flat >= 0) if np.ndim(labels) == 2 else np.arange(len(flat))
    return class_labels(layer, flat[places], classes), places


def rows_at(source: Array, places: np.ndarray, ctx: Context) -> Array:
    """Gather the rows of (B, n), or steps of (B, T, n), at these flat indices, (N, n)."""
    flat = source.reshape(-1, source.shape[-1])
    return flat if len(places) == len(flat) else flat[ctx.ops.asarray(places)]


def spread(rows: Array, places: np.ndarray, shape: Shape, ctx: Context) -> Array:
    """Scatter ``rows`` (N, ...) back to ``shape``, with zeros for steps without a label."""
    array = ctx.ops.xp.zeros((math.prod(shape[: len(shape) + 1 - rows.ndim]), *rows.shape[1:]), rows.dtype)
    array[ctx.ops.asarray(places)] = rows
    return array.reshape(shape)


class ClassWords(NamedTuple):
    """A class of words in a batch: the rows with its words, P(word | class) for all its words, the true words."""

    number: int
    rows: Array
    probabilities: Array
    labels: Array


@register("layer", kClassSoftmaxLoss=702)
class ClassSoftmaxLoss(Layer):
    """Cross-entropy by classes of words, -Σ log P(class of the label)·P(label | class) / B.

    A two-level softmax for large vocabularies (Goodman, Classes for fast maximum entropy training, 2001). Number words
    by falling frequency. Class k has the words from ``class_start[k]`` to the start of the next class.

    The sources give (B, n), or (B, T, n) for sequences, and labels (B,) or (B, T) in [0, ``vocab_size``), -1 after the
    end. The feature is the probability of each label.

    Params: word (vocab_size, n) and class (classes, n). Metrics: "loss", and "entropy", its mean over words:
    exp(entropy) is the perplexity.
    """

    class Conf(Settings):
        """Settings of kClassSoftmaxLoss."""

        vocab_size: Count = required("the number of words")
        class_start: list[Natural] = setting(
            [], "the code of the first word of each class, rising from 0; by default there is one class"
        )

    settings: Conf
    source_count = 2
    labels = Labels(source=1, of_scores=True)
    is_loss = True
    metric_names = ("loss", "entropy")
    source_kind = SourceKind.kSequences
    cut = Cut(gathered_because="normalises over all words of a class")
    bf16 = Bfloat16.kProducts
    rounds_source = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        starts, self.classes = settings.class_start or [0], settings.vocab_size
        if starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= self.classes:
            text = f"class_start must rise from 0 to less than the {self.classes} words of vocab_size"
            raise self.fail(text, field="class_start")
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
        order = np.argsort(classes, kind="stable")
        numbers, begins = np.unique(classes[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, begins)[1:], strict=True):
            start, stop = self.bounds[number : number + 2]
            class_rows = ctx.ops.asarray(rows)
            p = ctx.ops.softmax(ctx.ops.inner_product(x[class_rows], words[start:stop], None))
            yield ClassWords(number, class_rows, p, ctx.ops.asarray(labels[rows] - start))


@register("layer", kSampledLoss=732)
class SampledLoss(Layer):
    """Logistic loss of the label and of ``num_samples`` random words, -Σ (log σ(z[label]) + Σ_k log σ(-z[k])) / B.

    The sources give x, (B, n) or (B, T, n), and labels (B,) or (B, T) in [0, ``vocab_size``), -1 after the end. The
    score of word c is s[c] = x·weight[c] + bias[c].

    - kNegativeSampling (Mikolov et al., Distributed Representations of Words and Phrases, 2013): z = s. A random word
      that equals the label does not count.
    - kNCE, noise-contrastive estimation (Gutmann and Hyvärinen 2010; Mnih and Teh 2012): z[c] = s[c] -
      log(num_samples·q[c]).

    Random words have the probabilities q, proportional to ``counts``^``power``, or without counts q = log((c + 2) / (c
    + 1)) / log(V + 1) (Zipf's law, for words by falling frequency). Each row or step has its own random words.

    Params: weight (V, n) and bias (V,), with sparse gradients. A kInnerProduct with V outputs may share them. The
    feature is σ(s[label]), (B,) or (B, T).
    """

    class Conf(Settings):
        """Settings of kSampledLoss."""

        vocab_size: Count = required("the number of words")
        num_samples: Members = setting(5, "the number of random words for each label")
        method: SamplingMethod = setting(
            SamplingMethod.kNegativeSampling,
            "kNegativeSampling by scores alone, or kNCE, noise-contrastive estimation",
        )
        counts: list[Natural] = setting([], "how often each word occurs; without it, Zipf's law")
        power: NonNegative = setting(0.75, "the exponent of the counts in the probability of a random word")

    settings: Conf
    source_count = 2
    labels = Labels(source=1, of_scores=True)
    is_loss = True
    metric_names = ("loss",)
    source_kind = SourceKind.kSequences
    cut = Cut(gathered_because="scores words by whole rows")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        self.classes, self.samples = settings.vocab_size, settings.num_samples
        self.is_nce = settings.method is SamplingMethod.kNCE
        noise = noise_probabilities(self, settings)
        self.bounds = np.cumsum(noise)[:-1]  # word c is drawn by numbers from bounds[c - 1] to bounds[c]
        # The smallest positive number is for words that are never drawn, whose noise NCE cannot take the log of.
        self.shift = np.log(self.samples * np.maximum(noise, np.finfo(np.float64).tiny)) if self.is_nce else None
        self.shape = self.source_shapes[0][:-1]
        inputs = self.source_shapes[0][-1]
        self.params = (
            ParamSpec("weight", (self.classes, inputs), sparse=True),
            ParamSpec("bias", (self.classes,), sparse=True),
        )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels, places = labels_and_places(self, sources[1], self.classes)
        x, xp = rows_at(sources[0], places, ctx), ctx.ops.xp
        words, counted = self._words(labels, places, sources[0].shape[:-1], ctx)
        codes = ctx.ops.asarray(words)
        weights = ctx.ops.embedding(params[0], codes)  # (N, 1 + k, n)
        scores = xp.matmul(weights, x[:, :, None])[..., 0]
        scores = scores + ctx.ops.embedding(params[1].reshape(-1, 1), codes)[..., 0]
        logits = scores
        if self.shift is not None:
            logits = scores - ctx.ops.asarray(self.shift[words].astype(scores.dtype))
        signs = np.full(words.shape, -1, scores.dtype)
        signs[:, 0] = 1
        away = logits * ctx.ops.asarray(-signs)  # above 0 where the word is taken for what it is not
        mask = ctx.ops.asarray(counted.astype(scores.dtype))
        losses = (xp.maximum(away, 0) + xp.log1p(xp.exp(-xp.abs(away)))) * mask
        slopes = ctx.ops.sigmoid(away) * ctx.ops.asarray(-signs) * mask if ctx.training else None
        feature = spread(ctx.ops.sigmoid(scores[:, 0]), places, sources[0].shape[:-1], ctx)
        saved = (places, x, codes, weights, slopes) if ctx.training else None
        return Output(feature, saved=saved, metrics={"loss": (losses.sum(dtype=np.float64), len(sources[0]))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        places, x, codes, weights, slopes = output.saved
        ops = ctx.ops
        dscores = slopes * (1 / ctx.rows.total)  # (N, 1 + k)
        rows, dweight = ops.embedding_grad(codes, dscores[:, :, None] * x[:, None, :])
        _, dbias = ops.embedding_grad(codes, dscores[:, :, None])
        rows = ops.to_numpy(rows).astype(np.int64, copy=False)
        gradients = (
            SparseRows(rows, ops.to_numpy(dweight), params[0].shape),
            SparseRows(rows, ops.to_numpy(dbias)[:, 0], params[1].shape),
        )
        if not needs[0]:
            return (None, None), gradients
        dx = ops.xp.matmul(dscores[:, None, :], weights)[:, 0]
        return (spread(dx, places, sources[0].shape, ctx), None), gradients

    def _words(self, labels: Array, places: Array, shape: Shape, ctx: Context) -> tuple[Array, Array]:
        """Return the label and random words of each labelled row or step, (N, 1 + k), and whether each counts."""
        steps = shape[1] if len(shape) == 2 else 1
        numbers = ctx.uniform(self.name, steps * self.samples).reshape(-1, self.samples)[places]
        words = np.concatenate([labels[:, None], np.searchsorted(self.bounds, numbers, "right")], axis=1)
        counted = words != labels[:, None]
        counted[:, 0] = True
        return words, np.ones_like(counted) if self.is_nce else counted


def noise_probabilities(layer: Layer, settings: SampledLoss.Conf) -> np.ndarray:
    """Return each word's probability q as a random word, (V,) float64, by ``counts`` or Zipf's law."""
    words = settings.vocab_size
    if not settings.counts:
        bounds = np.log(np.arange(1, words + 2, dtype=np.float64))
        return np.diff(bounds) / bounds[-1]
    remedy = "give as many, or leave counts out for words that are numbered by falling frequency"
    layer.expect_numbers("counts", (words,), f"vocab_size is {words}; {remedy}")
    shares = np.array(settings.counts, np.float64) ** settings.power * (np.array(settings.counts) > 0)
    if not shares.any():
        raise layer.fail("has counts of 0 only, so that no word can be drawn; give how often words occur", settings)
    return shares / shares.sum()
