"""Tagged sequences: kCRF, a linear-chain conditional random field, and kEntityF1, the F1 score of entities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.records.label import integer_labels, sequence_labels


@register("layer", kCRF=700)
class CRF(Layer):
    """Linear-chain conditional random field: the loss is -Σ log P(tags of a sequence) / B.

    The first source gives scores (B, T, K) of K tags for each step. The second gives the true tags as its labels (B,
    T), and -1 after the end of a sequence. The feature is the most probable tags, (B, T) int64, -1 after the end.
    P(tags) is proportional to exp of

        start[tag 0] + Σ score[t, tag t] + Σ transitions[tag t-1, tag t]

    (Lafferty, McCallum and Pereira 2001). Params: transitions (K, K), from row to column, and start (K,). Both start
    with 0 unless the job has an ``init``. Metrics: "loss", and "accuracy", the share of steps with the right tag.

    For prediction, labels only give the lengths of the sequences: any number from 0 up marks a step.
    """

    source_count = 2
    labels = Labels(source=1, per="step", of_scores=True)
    is_loss = True
    metric_names = ("loss", "accuracy")
    source_kind = SourceKind.kSequences
    cut = Cut(gathered_because="sums over all tags of a step")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        takes = "a score for each tag of each step (batch, steps, tags)"
        batch, steps, self.classes = self.expect_axes((3,), takes)
        self.shape = (batch, steps)
        self.params = (ParamSpec("transitions", (self.classes, self.classes)), ParamSpec("start", (self.classes,)))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        tags = sequence_labels(self, sources[1], self.shape[1], self.classes)
        scores, (transitions, start), ops = sources[0], params, ctx.ops
        true_tags, real = ops.asarray(tags), tags >= 0
        loss, workspace = ops.kernel("crf")(scores, true_tags, transitions, start, ctx.training)
        best = ops.kernel("crf_decode")(scores, real.sum(axis=1), transitions, start)
        right = ((best == true_tags) & (true_tags >= 0)).sum()
        metrics = {"loss": (loss.sum(dtype=np.float64), len(tags)), "accuracy": (right, int(real.sum()))}
        return Output(best, saved=(true_tags, workspace) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (tags, workspace), (transitions, start) = output.saved, params
        for_scores, *for_params = ctx.ops.kernel("crf_grad")(sources[0], tags, transitions, start, workspace)
        factor = 1 / ctx.rows.total
        return (for_scores * factor if needs[0] else None, None), [gradient * factor for gradient in for_params]


TAG = re.compile(r"O|([BIMELSUW])(?:-(.+))?")
OPEN, INNER = frozenset("BIM"), frozenset("IMEL")  # roles that a word of the same entity may follow, or may have


@register("layer", kEntityF1=701)
class EntityF1(Layer):
    """Metrics "f1", "precision" and "recall" of entities, as in the evaluation of CoNLL-2000.

    The first source gives tags (B, T), as kCRF does, or scores (B, T, K); then the highest score counts. The second
    gives the true tags as its labels. An entity counts as found if its first word, its last word and its type are
    right. The feature is the tags, (B, T) int64.

    If the records have names of tags, the names count: schemes IOB1, IOB2, IOE, BIOES, BILOU and BMES. Without names,
    tags are numbered as by ``dsinga data import conll``: 0 is O, 2k + 1 is B-k and 2k + 2 is I-k for each type k.
    """

    source_count = 2
    labels = Labels(source=1, per="step")
    is_output = True
    metric_names = ("precision", "recall", "f1")
    source_kind = SourceKind.kSequences
    cut = Cut(gathered_because="looks at all tags of a sequence")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        takes = "tags (batch, steps), or a score for each tag of each step (batch, steps, tags)"
        self.shape = self.expect_axes((2, 3), takes)[:2]
        self.scheme: TagScheme | None = None

    def check_labels(self, sources: Sequence[Layer]) -> None:
        """Set the tag scheme from the labels' names; raise UserError for a name that fits no scheme."""
        names = sources[1].label_format.names
        if not names:
            return
        if unknown := next((name for name in names if not TAG.fullmatch(name)), None):
            raise self.fail(
                f"counts entities in tags such as O, B-x and I-x, also with E-x and S-x, but the labels of "
                f"{self.source_name(1)} have the tag {unknown!r}; import the sentences with such tags, or leave this "
                "layer out and look at the accuracy"
            )
        self.scheme = TagScheme.of(names)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        gold, predicted = integer_labels(self, sources[1]), ctx.ops.to_numpy(sources[0])
        if gold.shape != predicted.shape[:2]:
            raise self.fail(
                f"compares {predicted.shape[1]} steps of {self.source_name(0)} with labels of shape {gold.shape}"
            )
        tags = predicted.argmax(axis=2) if predicted.ndim == 3 else predicted
        tags = np.where(gold >= 0, tags, -1).astype(np.int64)
        return Output(tags, metrics=entity_metrics(tags, gold, self.scheme))


class TagScheme(NamedTuple):
    """The entity type of each tag, and which tags may follow one another.

    Before the hyphen, B begins an entity, I (or M) is inside, E (or L) ends one, S (or U, W) is a whole one. A word
    continues an entity if its tag is I or E and the previous word's is B or I of the same type. Any other word except O
    begins one, as in CoNLL.
    """

    kinds: Array
    is_open: Array
    is_inner: Array

    @classmethod
    def of(cls, names: Sequence[str]) -> TagScheme:
        """Create the scheme of tags with these names, in code order."""
        matches = [TAG.fullmatch(name) for name in names]
        roles = [match[1] if match else None for match in matches]
        types = [match[2] or "" if match and match[1] else None for match in matches]
        codes = {kind: code for code, kind in enumerate(dict.fromkeys(types)) if kind is not None}
        return cls(
            np.array([*(codes.get(kind, -1) if kind is not None else -1 for kind in types), -1]),
            np.array([*(role in OPEN for role in roles), False]),
            np.array([*(role in INNER for role in roles), False]),
        )

    @classmethod
    def numbered(cls, count: int) -> TagScheme:
        """Create the scheme of ``count`` tags numbered O, B-0, I-0, B-1, I-1, ..."""
        return cls.of(["O" if code == 0 else f"{'IB'[code % 2]}-{(code - 1) // 2}" for code in range(count)])

    def named_tags(self, tags: Array) -> Array:
        """Replace tags without a name by -1."""
        return np.where(tags < len(self.kinds) - 1, tags, -1)


class Entities(NamedTuple):
    """Entities in tags (B, T): whether one begins at a step and, if so, the step after its last word."""

    begins: Array
    ends: Array


def entity_metrics(tags: Array, gold: Array, scheme: TagScheme | None = None) -> dict[str, tuple[float, float]]:
    """Compute the precision, recall and F1 of entities, as (sum, count), which add up over a batch."""
    scheme = scheme or TagScheme.numbered(1 + max(tags.max(initial=0), gold.max(initial=0)))
    tags, gold = scheme.named_tags(tags), scheme.named_tags(gold)
    predicted, true = entities(tags, scheme), entities(gold, scheme)
    same = predicted.begins & true.begins & (predicted.ends == true.ends) & (scheme.kinds[tags] == scheme.kinds[gold])
    hits, predictions, entity_count = (int(mask.sum()) for mask in (same, predicted.begins, true.begins))
    precision, recall = (hits, predictions), (hits, entity_count)
    return {"precision": precision, "recall": recall, "f1": (2 * hits, predictions + entity_count)}


def entities(tags: Array, scheme: TagScheme) -> Entities:
    """Find the entities in tags (B, T)."""
    kinds, steps = scheme.kinds[tags], tags.shape[1]
    goes_on = np.zeros(tags.shape, bool)
    goes_on[:, 1:] = scheme.is_inner[tags][:, 1:] & scheme.is_open[tags][:, :-1] & (kinds[:, 1:] == kinds[:, :-1])
    stops = np.where(goes_on, steps, np.arange(steps))  # the next stop from a step on is its minimum from there
    following = np.full((len(tags), steps + 1), steps)
    following[:, :steps] = np.minimum.accumulate(stops[:, ::-1], axis=1)[:, ::-1]
    return Entities((kinds >= 0) & ~goes_on, following[:, 1:])
