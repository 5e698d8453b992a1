"""kCRF: a linear-chain conditional random field over the steps of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Gradients, Layer, Output, ParamSpec, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.label import sequence_labels
from dsinga.registry import register


@register("layer", "kCRF")
class CRF(Layer):
    """Linear-chain conditional random field: the loss is -Σ log P(tags of a sequence) / B.

    The feature is the most probable tags, (B, T) int64, -1 after the end of a sequence. The first source gives scores
    (B, T, K) of K tags for each step, the second the true tags as its labels (B, T), -1 after the end. P(tags) is
    proportional to exp of

        start[tag 0] + Σ score[t, tag t] + Σ transitions[tag t-1, tag t]

    (Lafferty, McCallum and Pereira 2001). Weights transitions (K, K), from row to column, and start (K,), both 0 at
    first unless the job has an ``init``. Metrics: "loss", and "accuracy", the share of steps whose tag is right.

    For prediction, labels only give the lengths of the sequences: any number from 0 on marks a step.
    """

    source_count: ClassVar[int | None] = 2
    label_source: int | None = 1
    takes_step_labels: ClassVar[bool] = True
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    over_steps: ClassVar[bool] = True
    gathered_because = "sums over all tags of a step"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if len(self.source_shapes[0]) != 3:
            raise self.fail(
                f"takes a score for each tag of each step (batch, steps, tags), but {self.source_name(0)} gives "
                f"{as_text(self.source_shapes[0])}",
                field="srclayers",
            )
        batch, steps, self.classes = self.source_shapes[0]
        self.shape = (batch, steps)
        self.params = (ParamSpec("transitions", (self.classes, self.classes)), ParamSpec("start", (self.classes,)))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        tags = sequence_labels(self, sources[1], self.shape[1], self.classes)
        scores, (transitions, start), ops = sources[0], params, ctx.ops
        true_tags, real = ops.asarray(tags), tags >= 0
        loss, workspace = ops.crf(scores, true_tags, transitions, start, ctx.training)
        best = ops.crf_decode(scores, real.sum(axis=1), transitions, start)
        right = ((best == true_tags) & (true_tags >= 0)).sum()
        metrics = {"loss": (loss.sum(dtype=np.float64), len(tags)), "accuracy": (right, int(real.sum()))}
        return Output(best, saved=(true_tags, workspace) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (tags, workspace), (transitions, start) = output.saved, params
        for_scores, *for_params = ctx.ops.crf_grad(sources[0], tags, transitions, start, workspace)
        factor = 1 / ctx.rows.total
        return (for_scores * factor if needs[0] else None, None), [gradient * factor for gradient in for_params]
