"""Losses of ensembles: in training the mean of the members' losses, otherwise the loss of the mean prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.layers.interface.context import Context, RecordInfo, Rows
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.losses.binary_loss import SigmoidCrossEntropyLoss
from dsinga.layers.losses.class_loss import SoftmaxLoss
from dsinga.layers.losses.difference_loss import EuclideanLoss

MEMBERS = 2  # the source with the members' predictions


class MemberLoss(Layer):
    """Base class of losses of ensembles, made from the loss ``loss`` of one net, with its settings.

    Sources: the members' mean (B, n) from a kMemberMean, which gets the gradient 0; labels or targets; and the members'
    predictions, (B, k, n). A fourth source may give a weight for each row. In training the metric "loss" is the mean of
    the members' losses, which are trained independently; otherwise it is the loss of the mean, as all other metrics
    are.
    """

    loss: ClassVar[type[Layer]]
    source_count = 3
    optional_sources = 1
    is_loss = True
    cut = Cut(gathered_because="reports the loss of whole rows")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        takes = "the members' outputs (batch, members, numbers) as its third source"
        rows, self.members, outputs = self.expect_axes((3,), takes, source=MEMBERS)
        mean = self.source_shapes[0]
        self.expect_alike(mean == (rows, outputs), "give first the kMemberMean of the third", MEMBERS)
        shapes = [shape for source, shape in enumerate(self.source_shapes) if source != MEMBERS]
        self.of_mean = self.loss(conf, shapes)
        self.of_members = self.loss(conf, [(shape[0] * self.members, *shape[1:]) for shape in shapes])
        self.shape = self.of_mean.shape

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        return cls.loss.label_example(settings, shape, known)

    def check_labels(self, sources: Sequence[Layer]) -> None:
        self.of_mean.check_labels([source for index, source in enumerate(sources) if index != MEMBERS])

    def check_sources(self, sources: Arrays, ctx: Context) -> None:
        self.of_mean.check_sources([*sources[:MEMBERS], *sources[MEMBERS + 1 :]], ctx)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        mean, labels, _, *weights = sources
        whole = self.of_mean.compute_feature([], [mean, labels, *weights], ctx)
        if not ctx.training:
            return whole
        members = self.of_members.compute_feature([], self._by_member(sources), self._context(ctx))
        total, rows = members.metrics["loss"]
        metrics = {**whole.metrics, "loss": (total / self.members, rows / self.members)}
        return whole._replace(saved=members, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        of_members = [needs[MEMBERS], needs[1], *needs[MEMBERS + 1 :]]
        (for_members, *others), _ = self.of_members.compute_gradient(
            [], self._by_member(sources), output.saved, None, of_members, self._context(ctx)
        )
        for_labels, *for_weights = (
            None if array is None else array.reshape(-1, self.members, *array.shape[1:]).sum(axis=1) for array in others
        )
        for_mean = ctx.ops.xp.zeros_like(sources[0]) if needs[0] else None
        if for_members is not None:
            for_members = for_members.reshape(sources[MEMBERS].shape)
        return [for_mean, for_labels, for_members, *for_weights], ()

    def _by_member(self, sources: Arrays) -> list[Any]:
        """Reshape the sources to B·k rows: each member's outputs, with labels and weights repeated k times."""
        _, labels, outputs, *weights = sources
        repeated = (each.repeat(self.members, axis=0) for each in (labels, *weights))
        return [outputs.reshape(-1, outputs.shape[2]), *repeated]

    def _context(self, ctx: Context) -> Context:
        """Return ``ctx`` for a loss that sees each of B records k times, once for each member."""
        return replace(ctx, rows=Rows(*(count * self.members for count in ctx.rows)))


@register("layer", kMemberSoftmaxLoss=903)
class MemberSoftmaxLoss(MemberLoss):
    """The kSoftmaxLoss of an ensemble, for classes: in training the mean of the losses of the members.

    Sources: scores of the mean (B, K), labels, scores of each member (B, k, K), and perhaps weights of rows. Settings
    are the settings of kSoftmaxLoss. Outside training, "loss" is the loss of the members' mean, a kMemberMean.
    "accuracy" is always the accuracy of the mean.
    """

    Conf = SoftmaxLoss.Conf
    loss = SoftmaxLoss
    labels = SoftmaxLoss.labels
    marks_wrong_labels = True
    metric_names = SoftmaxLoss.metric_names


@register("layer", kMemberSigmoidLoss=904)
class MemberSigmoidLoss(MemberLoss):
    """The kSigmoidCrossEntropyLoss of an ensemble, for answers: in training the mean of the losses of the members.

    Sources: scores of the mean (B, n), answers (B, n), scores of each member (B, k, n), and perhaps weights of rows.
    Settings are the settings of kSigmoidCrossEntropyLoss. Outside training, "loss" is the loss of the members' mean, a
    kMemberMean. "accuracy" is always the accuracy of the mean.
    """

    Conf = SigmoidCrossEntropyLoss.Conf
    loss = SigmoidCrossEntropyLoss
    metric_names = SigmoidCrossEntropyLoss.metric_names


@register("layer", kMemberEuclideanLoss=905)
class MemberEuclideanLoss(MemberLoss):
    """The kEuclideanLoss of an ensemble, for numbers: in training the mean of the losses of the members.

    Sources: the mean of the members (B, n), targets (B, n), numbers of each member (B, k, n), and perhaps weights of
    rows. Settings are the settings of kEuclideanLoss. Outside training, "loss" is the loss of the members' mean, a
    kMemberMean.
    """

    Conf = EuclideanLoss.Conf
    loss = EuclideanLoss
    metric_names = EuclideanLoss.metric_names
