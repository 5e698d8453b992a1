"""kGatheredMetrics: metrics computed from all labels and predictions together, such as ROC AUC or your own function.

A function is registered as a metric. It gets the labels, (n,) or (n, k), and the predictions of all n records, (n, k)
or (n,), in no certain order. It returns a number, or one number for each record, which are averaged.

>>> from dsinga import register
>>> @register("metric", "worst_error")
... def worst_error(labels, predictions):
... return abs(labels - predictions).max()
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.components import written_distribution
from dsinga.base.errors import UserError
from dsinga.base.registry import find, is_user_code, lookup, nearest_or_listed, register, registered
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required
from dsinga.job.functions import value_of
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape, to_matrix
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums
from dsinga.layers.metrics.metric_state import GatheredRows
from dsinga.layers.records.label import required_labels


@register("layer", kGatheredMetrics=777)
class GatheredMetrics(Layer):
    """Metrics of labels and predictions of all records together, such as ROC AUC: exact for any batches and workers.

    The sources give predictions (B, ...), k numbers a row, and labels (B,) or (B, k). The layer gathers both for all
    records of a test, or of training since its last row, and computes each metric once. It keeps 4·k bytes for each
    prediction and 8 for a label, at most 1 GiB. ``metric`` names registered metrics: roc_auc, average_precision, or
    your own, ``@dsinga.register("metric", "worst")``, which gets labels and predictions in no certain order. The
    feature is the predictions.
    """

    class Conf(Settings):
        """Settings of kGatheredMetrics."""

        metric: list[str] = required("the names of the metrics: roc_auc, average_precision, or registered functions")

    settings: Conf
    source_kind = SourceKind.kVectors
    source_count = 2
    labels = Labels(source=1, floats=True)
    is_output = True
    cut = Cut(gathered_because="gathers whole rows")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.metric_names = tuple(self.settings.metric)
        for name in self.metric_names:
            if find("metric", name) is None:
                hint = written_distribution("metric", name)
                hint = hint or nearest_or_listed(name, registered("metric"), "these are")
                raise self.fail(f"there is no metric {name!r}{hint}", field="metric")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[1])
        predictions = np.array(ctx.ops.to_numpy(to_matrix(sources[0], ctx.ops)))
        rows = GatheredRows(labels.copy(), predictions)
        return Output(sources[0], metrics={f"gathered:{name}": (rows, 0) for name in self.metric_names})


@register("composed_metric", "gathered")
def gathered_metrics(parts: Sums) -> MetricValues:
    """Compute each metric from all labels and predictions."""
    values = {}
    for name, (rows, _) in parts.items():
        assert isinstance(rows, GatheredRows)
        values[name] = _value(name, rows)
    return values


def _value(name: str, rows: GatheredRows) -> float:
    """Call the metric function ``name`` on all rows."""
    function = lookup("metric", name)
    try:
        labels, predictions = rows.arrays().values() if is_user_code(function) else rows.rows()  # ours need no order
        arguments = [labels, predictions[:, 0] if predictions.shape[1] == 1 else predictions]
        if is_user_code(function):
            value = value_of(function, arguments)
            value = value.mean() if value.ndim and len(value) == len(labels) else value
        else:
            value = function(*arguments)
    except UserError:
        raise
    except Exception as error:
        if (getattr(function, "__module__", None) or "").startswith("sklearn."):  # which takes classes, not scores
            raise UserError(
                f"the metric {name!r} fails for labels {labels.shape} and predictions {predictions.shape}: {error}; "
                "predictions are scores: name a metric, as in metrics=['accuracy'], or give a function of (labels, "
                "predictions) that takes predictions.argmax(axis=1)"
            ) from None
        error.add_note(f"in the metric {name!r}, a function of the labels and predictions of all records")
        raise
    if np.size(value) != 1 or np.asarray(value).dtype.kind not in "biuf":
        raise UserError(
            f"the metric {name!r} must return a number, or one for each record, not "
            f"{value_text(np.asarray(value).tolist())}"
        )
    return float(np.asarray(value).item())
