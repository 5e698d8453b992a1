"""kEntityF1: precision, recall and F1 of the entities in tagged sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Array, Arrays, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.label import integer_labels
from dsinga.registry import register


@register("layer", "kEntityF1")
class EntityF1(Layer):
    """Metrics "f1", "precision" and "recall" of entities, as in the evaluation of CoNLL-2000.

    The feature is the tags, (B, T) int64, -1 after the end of a sequence. The first source gives tags (B, T), as kCRF
    does, or scores (B, T, K), of which the highest counts; the second the true tags as its labels (B, T), -1 after the
    end. Tags are numbered as by ``dsinga data import conll``: 0 is O, 2k + 1 the first word of an entity of type k
    (B-), 2k + 2 one of its other words (I-). An entity counts as found if its first word, its last word and its type
    are right. An I- that follows no word of its type begins an entity.
    """

    source_count: ClassVar[int | None] = 2
    label_source: int | None = 1
    is_output = True
    metric_names: ClassVar[tuple[str, ...]] = ("precision", "recall", "f1")
    over_steps: ClassVar[bool] = True
    gathered_because = "looks at all tags of a sequence"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        shape = self.source_shapes[0]
        if len(shape) not in (2, 3):
            raise self.fail(
                "takes tags (batch, steps), or a score for each tag of each step (batch, steps, tags), but "
                f"{self.source_name(0)} gives {as_text(shape)}",
                field="srclayers",
            )
        self.shape = shape[:2]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        gold, predicted = integer_labels(self, sources[1]), ctx.ops.to_numpy(sources[0])
        if gold.shape != predicted.shape[:2]:
            raise self.fail(
                f"compares {predicted.shape[1]} steps of {self.source_name(0)} with labels of shape {gold.shape}"
            )
        tags = predicted.argmax(axis=2) if predicted.ndim == 3 else predicted
        tags = np.where(gold >= 0, tags, -1).astype(np.int64)
        return Output(tags, metrics=entity_metrics(tags, gold))


class Entities(NamedTuple):
    """Entities in tags (B, T): whether one begins at a step and, where one does, the step after its last word."""

    begins: Array
    ends: Array


def entity_metrics(tags: Array, gold: Array) -> dict[str, tuple[float, float]]:
    """Return precision, recall and F1 of the entities of ``tags``, as (sum, count), which add up over a batch."""
    predicted, true = entities(tags), entities(gold)
    same = predicted.begins & true.begins & (predicted.ends == true.ends) & (kinds(tags) == kinds(gold))
    hits, predictions, entity_count = (int(mask.sum()) for mask in (same, predicted.begins, true.begins))
    precision, recall = (hits, predictions), (hits, entity_count)
    return {"precision": precision, "recall": recall, "f1": (2 * hits, predictions + entity_count)}


def kinds(tags: Array) -> Array:
    """Return the entity type of each tag, -1 for tags of no entity."""
    return np.where(tags > 0, (tags - 1) // 2, -1)


def entities(tags: Array) -> Entities:
    """Find the entities in tags (B, T), numbered as for :class:`EntityF1`."""
    inner, steps = (tags > 0) & (tags % 2 == 0), tags.shape[1]
    goes_on = np.zeros(tags.shape, bool)
    goes_on[:, 1:] = inner[:, 1:] & (kinds(tags)[:, 1:] == kinds(tags)[:, :-1])
    stops = np.where(goes_on, steps, np.arange(steps))  # the next stop from a step on is its minimum from there
    following = np.full((len(tags), steps + 1), steps)
    following[:, :steps] = np.minimum.accumulate(stops[:, ::-1], axis=1)[:, ::-1]
    return Entities((tags > 0) & ~goes_on, following[:, 1:])
