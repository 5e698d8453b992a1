"""kCTCLoss: the loss for label sequences without known positions in time, as in speech or handwriting.

The probability of labels (Graves et al., 2006) is summed over all ways to place them in time, in log space. With blanks
before, between and after them, S labels have 2S + 1 states. A path goes to the same state, to the next, or over a blank
between two different labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural, NonNegative
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.records.label import check_ends, integer_labels

LENGTHS = 2  # the position of the source with codes of the steps


@register("layer", kCTCLoss=776)
class CTCLoss(Layer):
    """Connectionist temporal classification, -Σ log P(labels)·scale / B over all ways to place the labels in time.

    Use it where sequences have fewer labels than steps, such as speech and handwriting (Graves et al., Connectionist
    Temporal Classification, 2006). The class ``blank`` stands for no label.

    The first source gives scores (B, T, K). The second gives labels (B, S) in [0, K) without ``blank``, and -1 after
    the end. A third source may give codes (B, T) that are -1 after the end of a sequence, as kSequenceLength does; else
    each sequence has T steps. The feature is the labels of the most probable path, (B, T) int64, -1 after the end.
    Metrics: "loss", and "accuracy", the share of sequences with all labels right.

    It is PyTorch's ctc_loss(log_softmax(x), ..., reduction="sum") / B. It is computed by numpy in float64 with every
    backend. Raises UserError if labels do not fit in the steps: a sequence needs a step for each label, and one more
    between two equal labels.
    """

    class Conf(Settings):
        """Settings of kCTCLoss."""

        blank: Natural = setting(0, "the class that stands for no label")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    source_count = 2
    optional_sources = 1
    labels = Labels(source=1, of_scores=True)
    is_loss = True
    metric_names = ("loss", "accuracy")
    source_kind = SourceKind.kSequences
    cut = Cut(gathered_because="sums over all classes of a step")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        takes = "a score for each class of each step (batch, steps, classes)"
        batch, steps, self.classes = self.expect_axes((3,), takes)
        if self.settings.blank >= self.classes:
            raise self.fail(
                f"blank is {self.settings.blank}, but there are {self.classes} classes (0 to {self.classes - 1}); give "
                "the layer below one output more than there are labels, and blank its number",
                field="blank",
            )
        if len(self.source_shapes) > LENGTHS and self.source_shapes[LENGTHS][1:] != (steps,):
            raise self.fail(
                f"takes the lengths of sequences of {steps} steps from {self.source_name(LENGTHS)}, which gives "
                f"{shape_text(self.source_shapes[LENGTHS])}; give it a kSequenceLength layer of as many steps",
                field="srclayers",
            )
        self.shape = (batch, steps)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        scores = ctx.ops.to_numpy(sources[0])
        labels = self._labels(sources[1])
        lengths = self._lengths(sources, scores)
        losses, paths = ctc(scores, labels, lengths, self.settings.blank)
        self._check_fit(labels, lengths, ctx)
        best = self._best_path(scores, lengths)
        right = (_padded(best, labels.shape[1]) == _padded(labels, best.shape[1])).all(axis=1).sum()
        metrics = {"loss": (losses.sum() * self.settings.scale, len(labels)), "accuracy": (int(right), len(labels))}
        return Output(best, saved=(paths, losses) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        grads: list[Array | None] = [None] * len(sources)
        if needs[0]:
            gradient = ctc_grad(*output.saved) * (self.settings.scale / ctx.rows.total)
            grads[0] = ctx.ops.asarray(gradient.astype(sources[0].dtype))
        return grads, ()

    def saved_sizes(self, rows: int) -> list[int]:
        steps, labels = self.source_shapes[0][1], self.source_shapes[1][-1]
        return [8 * rows * steps * self.classes, *[8 * rows * steps * (2 * labels + 1)] * 2]

    def backward_sizes(self, rows: int) -> list[int]:
        return self.saved_sizes(rows)[:2]

    def _labels(self, source: Any) -> np.ndarray:
        """Check and return the labels (B, S); raise UserError for others than classes, or -1 before a label."""
        labels = integer_labels(self, source)
        if labels.ndim != 2:
            raise self.fail(f"takes several labels a row, (batch, labels), but gets {shape_text(labels.shape)}")
        wrong = (labels < -1) | (labels >= self.classes) | (labels == self.settings.blank)
        if wrong.any():
            raise self.fail(
                f"label {int(labels[wrong][0])} is none of its {self.classes} classes (0 to {self.classes - 1}, "
                f"without {self.settings.blank}, the blank; -1 after the end); correct the labels, or set blank "
                "to a class of its own"
            )
        check_ends(self, labels, self.source_name(1))
        return labels

    def _lengths(self, sources: Arrays, scores: np.ndarray) -> np.ndarray:
        if len(sources) <= LENGTHS:
            return np.full(len(scores), scores.shape[1])
        return check_ends(self, np.asarray(sources[LENGTHS]), self.source_name(LENGTHS))

    def _check_fit(self, labels: np.ndarray, lengths: np.ndarray, ctx: Context) -> None:
        equal = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] >= 0)
        needed = (labels >= 0).sum(axis=1) + equal.sum(axis=1)
        if (too_long := needed > lengths).any():
            row = int(np.argmax(too_long))
            raise self.fail(
                f"row {ctx.rows.start + row} of the batch has labels that need {needed[row]} steps, one for each and "
                f"one between two equal ones, but {lengths[row]} steps; leave such records out, or pool fewer steps"
            )

    def _best_path(self, scores: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Decode the most probable path: each step's best class, without repeats and blanks, (B, T), -1 after."""
        path = scores.argmax(axis=2)
        kept = (path != self.settings.blank) & (np.arange(path.shape[1]) < lengths[:, None])
        kept[:, 1:] &= path[:, 1:] != path[:, :-1]
        best = np.full(path.shape, -1)
        best[np.nonzero(kept)[0], (kept.cumsum(axis=1) - 1)[kept]] = path[kept]
        return best


def _padded(codes: np.ndarray, width: int) -> np.ndarray:
    return np.pad(codes, ((0, 0), (0, max(0, width - codes.shape[1]))), constant_values=-1)


class Paths(NamedTuple):
    """The states of a batch's label sequences, L = 2S + 1, and the sums over the paths to each state.

    ``symbols`` (B, L) has each state's class, ``skips`` (B, L) 0 if a path may come over a blank, else -inf.
    ``lengths`` and ``ends`` (B,) are each sequence's numbers of steps and states. ``logs`` (B, T, K) is the
    log-softmax, ``emitted`` (T, B, L) its value for each state's class. ``forward`` (T, B, L) is the log of the sum
    over paths to a state, its own step included.
    """

    symbols: Array
    skips: Array
    lengths: Array
    ends: Array
    logs: Array
    emitted: Array
    forward: Array


def add_logs(first: Array, second: Array, third: Array) -> Array:
    """Compute log(exp(first) + exp(second) + exp(third)); -inf stands for 0."""
    top = np.maximum(np.maximum(first, second), third)
    top[np.isneginf(top)] = 0
    return np.log(np.exp(first - top) + np.exp(second - top) + np.exp(third - top)) + top


def shifted(states: Array, by: int) -> Array:
    """Shift states (B, L) by ``by`` places, with -inf for missing ones."""
    moved = np.full_like(states, -np.inf)
    if by > 0:
        moved[:, by:] = states[:, :-by]
    else:
        moved[:, :by] = states[:, -by:]
    return moved


def ctc(x: Array, labels: Array, lengths: Array, blank: int) -> tuple[Array, Paths]:
    """Compute each sequence's -log P(labels), (B,) float64, infinity if labels do not fit, and the paths.

    ``x`` (B, T, K) are scores with ``lengths`` (B,) valid steps, ``labels`` (B, S) classes except ``blank``, -1 after
    the end.
    """
    counts = (labels >= 0).sum(axis=1)
    rows, states = np.arange(len(x)), 2 * labels.shape[1] + 1
    symbols = np.full((len(x), states), blank)
    symbols[:, 1::2] = np.where(labels >= 0, labels, blank)
    may_skip = np.zeros(symbols.shape, bool)
    may_skip[:, 2:] = (symbols[:, 2:] != blank) & (symbols[:, 2:] != symbols[:, :-2])
    skips = np.where(may_skip, 0.0, -np.inf)
    logs = x.astype(np.float64)
    logs -= logs.max(axis=2, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=2, keepdims=True))
    emitted = np.ascontiguousarray(np.take_along_axis(logs, symbols[:, None, :], axis=2).transpose(1, 0, 2))
    forward = np.empty_like(emitted)
    forward[0] = -np.inf
    forward[0, :, :2] = emitted[0, :, :2]
    with np.errstate(divide="ignore"):
        for t in range(1, len(forward)):
            before = forward[t - 1]
            forward[t] = add_logs(before, shifted(before, 1), shifted(before, 2) + skips) + emitted[t]
        last = forward[lengths - 1, rows]
        ends = 2 * counts + 1  # the states of each sequence: it ends in the last label, or in the blank after it
        in_label = np.where(counts > 0, last[rows, np.maximum(ends - 2, 0)], -np.inf)
        losses = -np.logaddexp(last[rows, ends - 1], in_label)
    return losses, Paths(symbols, skips, lengths, ends, logs, emitted, forward)


def ctc_grad(paths: Paths, losses: Array) -> Array:
    """Compute the gradient of the sum of ``losses`` (B,) of :func:`ctc` for the scores, (B, T, K) float64."""
    symbols, skips, lengths, ends, logs, emitted, forward = paths
    batch, states = symbols.shape
    from_here = np.full_like(skips, -np.inf)  # the log of the sum over paths from a state, without its own step
    shares = np.zeros_like(forward)  # P(state at t | labels)
    last = np.arange(states) - (ends - 1)[:, None]
    is_end = (last == 0) | ((last == -1) & (ends > 1)[:, None])
    over = shifted(skips, -2)  # where a path may go on over a blank
    with np.errstate(divide="ignore"):
        for t in range(len(forward) - 1, -1, -1):
            if t + 1 < len(forward):
                on = from_here + emitted[t + 1]
                from_here = add_logs(on, shifted(on, -1), shifted(on, -2) + over)
            ending = (lengths - 1 == t)[:, None]
            from_here = np.where(ending, np.where(is_end, 0.0, -np.inf), from_here)
            shares[t] = np.exp(forward[t] + from_here + losses[:, None])
    gradient = np.exp(logs)
    steps, classes = logs.shape[1:]
    places = (np.arange(batch)[:, None] * steps + np.arange(steps)[:, None, None]) * classes + symbols
    gradient -= np.bincount(places.ravel(), shares.ravel(), gradient.size).reshape(gradient.shape)
    gradient[np.arange(steps) >= lengths[:, None]] = 0
    return gradient
