"""The metrics that ``compile`` accepts: names, functions, Keras's classes, and the layers that report them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsinga.base.arguments import check_names, value_text, values_by_name
from dsinga.base.errors import UserError
from dsinga.base.registry import entries, find, is_user_code, nearest, register
from dsinga.job import LayerConf, Phase
from dsinga.job.component import resolve
from dsinga.net.layer_classes import layer_class
from dsinga.net.needed_layers import PROBABILITIES
from dsinga.nn.words.keras_arguments import Name, missing_names
from dsinga.nn.words.losses import metric_names
from dsinga.nn.writing.feature import Feature, row_shape
from dsinga.nn.writing.symbol import flatten
from dsinga.nn.writing.writer import NetWriter, make_conf


@dataclass(frozen=True)
class MetricLayer:
    """A layer that reports metrics of an output, by its type, name and settings."""

    type: str
    name: str
    field: str
    settings: dict[str, Any]


# Metric names by Keras's classes, for compile(metrics=[nn.metrics.AUC()]).
NAMES = {
    "AUC": "roc_auc",
    **dict.fromkeys("Accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy".split(), "accuracy"),
    "MeanAbsoluteError": "mae",
    "MeanIoU": "mean_iou",
    "Precision": "precision",
    "R2Score": "r2",
    "Recall": "recall",
    "RootMeanSquaredError": "rmse",
    **dict.fromkeys(("SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy"), "top_{}_accuracy"),
}
# Metric names in Keras and scikit-learn.
ALIASES = {
    **dict.fromkeys("acc binary_accuracy sparse_categorical_accuracy categorical_accuracy".split(), "accuracy"),
    **dict.fromkeys("sparse_top_k_categorical_accuracy top_k_categorical_accuracy".split(), "top_5_accuracy"),
    **dict.fromkeys("auc AUC roc_auc_score".split(), "roc_auc"),
    "average_precision_score": "average_precision",
    "f1_score": "f1",
    "matthews_corrcoef": "mcc",
    "f1_macro": "macro_f1",
    "precision_macro": "macro_precision",
    "recall_macro": "macro_recall",
    "r2_score": "r2",
    "root_mean_squared_error": "rmse",
    "mean_absolute_error": "mae",
    **dict.fromkeys("MeanIoU mean_io_u jaccard_score".split(), "mean_iou"),
    "dice_score": "dice",
    "brier_score_loss": "brier",
}
OF_CLASSES = [f"{form}{name}" for form in ("", "macro_") for name in ("precision", "recall", "f1")]
OF_CLASSES_ALONE = ("kSoftmaxLoss", "kCudnnSoftmaxLoss", "kHingeLoss", "kClassSoftmaxLoss")  # losses
LISTED = [f"{name}_by_class" for name in ("precision", "recall", "f1")]  # figures that histories leave out
# The types of the layers that report metrics, and the names of the layers.
TYPES = {
    **dict.fromkeys([*OF_CLASSES, *LISTED, "confusion", "mcc"], ("kConfusionMatrix", "confusion")),
    **dict.fromkeys(("rmse", "mae", "r2"), ("kRegressionError", "errors")),
    "perplexity": ("kPerplexity", "perplexity"),
    "bias": ("kFieldError", "fields"),
    **dict.fromkeys("crps coverage spread spread_skill rank_histogram".split(), ("kForecastScores", "forecast")),
    **dict.fromkeys("brier calibration_error reliability".split(), ("kReliability", "reliability")),
    **dict.fromkeys(
        "mean_iou dice pixel_accuracy iou_by_class dice_by_class".split(), ("kSegmentationScore", "overlaps")
    ),
}
FIELDS = {"rmse", "mae", "bias"}  # kFieldError reports them, too
FORM = "quantile", "distribution", "members", "fairness"  # settings of losses with several predictions of a number
GATHERED = ("kGatheredMetrics", "gathered")
TOP = re.compile(r"top_([1-9]\d*)_accuracy")
ELSEWHERE = {
    "accuracy": "losses of classes and of yes-or-no questions report it, and this net has none; for numbers to predict "
    "there are rmse, mae and r2",
    "anomaly_correlation": "it needs a climatology; write nn.FieldError(climatology=...) among the metrics",
    "bleu": "BLEU compares texts that a net has generated: dsinga translate --references prints it, "
    "dsinga.training.bleu(translations, references) returns it",
    "mse": 'write "rmse", its root, or loss="mse", which is reported as the loss',
    "mean_squared_error": 'write "rmse", its root, or loss="mse", which is reported as the loss',
}
AnyMetric = str | Callable[..., Any] | MetricLayer
Reported = str | MetricLayer  # a metric by its name, or a layer with settings


def metrics_by_output(metrics: Any, outputs: Sequence[str]) -> list[list[Reported]]:
    """Sort the metrics given to ``compile`` by output, as names or layers; register functions.

    ``metrics`` is a name, a function, a layer, or a list of these. For several outputs it may be a dict by output, a
    list of lists, or a list of single metrics that includes None.
    """
    functions: dict[str, Any] = {}
    for metric in flatten([*metrics.values()] if isinstance(metrics, Mapping) else [metrics]):
        name = getattr(metric, "__name__", "")
        if functions.setdefault(name, metric) is not metric and name:
            raise UserError(f"two functions of metrics= are called {name!r}; give them different names")
    if isinstance(metrics, Mapping) and len(outputs) == len(metrics) == 1 and not outputs[0]:
        metrics = [*metrics.values()]  # an output layer without a name
    if isinstance(metrics, Mapping):
        given = values_by_name("metrics", {**dict.fromkeys(outputs, []), **metrics}, outputs, "output")
        return [[metric_name(metric) for metric in flatten([of_output])] for of_output in given]
    items = [] if metrics is None else list(metrics) if isinstance(metrics, (list, tuple)) else [metrics]
    if 1 < len(outputs) == len(items) and (None in items or all(isinstance(item, (list, tuple)) for item in items)):
        return [[metric_name(metric) for metric in flatten([[] if item is None else item])] for item in items]
    names = [metric_name(metric) for metric in flatten([items])]
    return [names, *([] for _ in outputs[1:])]


def metric_name(metric: AnyMetric) -> Reported:
    """Return a metric's name in the history; register a function under its own name."""
    if isinstance(metric, MetricLayer):
        return metric
    if isinstance(metric, str):
        return ALIASES.get(metric, metric)
    name = getattr(metric, "__name__", "")
    if not callable(metric) or isinstance(metric, type) or not name.isidentifier():
        raise UserError(
            'metrics are names, as in metrics=["accuracy"], or functions of (labels, predictions) that have a name, as '
            f"in def gap(labels, predictions), not {value_text(metric)}"
        )
    known = entries("metric")
    ours = [other for other, function in known.items() if not is_user_code(function)]
    if name in ("loss", "accuracy", *TYPES, *ours) and known.get(name) is not metric or TOP.fullmatch(name):
        raise UserError(f"the function {name!r} has the name of a metric that there is already; give it another name")
    if known.get(name) is not metric:
        register("metric", name)(metric)
    return name


def reporting(name: str) -> tuple[str, str] | None:
    """Find the type and name of the layer that reports a metric, or None."""
    if TOP.fullmatch(name):
        return "kTopKAccuracy", name.removesuffix("_accuracy")
    return GATHERED if find("metric", name) else TYPES.get(name)


def check_metric_names(metrics: Sequence[Reported], kinds: Collection[str]) -> None:
    """Raise UserError for a metric of ``compile`` that no layer of the model can report."""
    known = metric_names(kinds)
    for metric in metrics:
        if isinstance(metric, MetricLayer) or metric in known or (metric not in ELSEWHERE and reporting(metric)):
            continue
        if metric == "accuracy" and "FunctionLoss" in kinds:  # its labels may be classes
            continue
        if metric in ELSEWHERE:
            raise UserError(f"there is no metric {metric!r}: {ELSEWHERE[metric]}")
        others = [*TYPES, "top_5_accuracy", *entries("metric")]
        raise UserError(
            f"there is no metric {metric!r}{nearest(metric, [*known, *others, *ALIASES])}; the layers report "
            f"{', '.join(sorted(known))}; docs/reference/metrics.md has further ones, such as macro_f1, rmse, mean_iou "
            "and roc_auc; a function of (labels, predictions) is one, too"
        )


def write_metrics(net: NetWriter, metrics: Sequence[Reported], output: Feature, loss: str, labels: Feature) -> None:
    """Write the layers that report an output's metrics, unless the loss reports them, into a job."""
    conf = next((conf for conf in net.layers if conf.name == loss), None)
    prefix = "" if loss == "loss" else f"{output.layer}_"
    points = _point_settings(conf)
    for metric in (metric for metric in metrics if isinstance(metric, MetricLayer)):
        fields: dict[str, Any] = {metric.field: {**points, **metric.settings}}
        net.layers.append(make_conf(f"{prefix}{metric.name}", metric.type, [output.layer, labels.layer], **fields))
    per_step, mixed = None if conf is None else conf.per_step, _mixed_phases(net, labels)
    names_by_layer = _by_layer([metric for metric in metrics if isinstance(metric, str)], conf, points)
    for (kind, name), names in names_by_layer.items():
        predictions = _predictions(kind, names[0], conf, output.layer)
        fields = {"per_step": per_step, "exclude": mixed, **_settings(kind, names, conf, points)}
        new = make_conf(f"{prefix}{name}", kind, [predictions, labels.layer], **fields)
        _check_reports(new, names, row_shape(output))
        net.layers.append(new)


def _mixed_phases(net: NetWriter, labels: Feature) -> list[Phase]:
    """Return the training phase if an augmentation mixes its records: mixed labels are not classes."""
    store = source.store_conf if (source := net.inputs.get(labels.layer)) else None
    changes = [resolve(change) for change in store.augment] if store is not None else []
    return [Phase.kTrain] if any(getattr(change, "mixes_records", False) for change in changes) else []


def _predictions(kind: str, metric: str, loss: LayerConf | None, output: str) -> str:
    """Choose what a metric layer reads: the loss layer if it gives probabilities, else the output."""
    if kind == "kRegressionError" and loss is not None and loss.type_name in OF_CLASSES_ALONE:
        raise UserError(
            f"the metric {metric!r} is of numbers to predict, but the loss of {output!r} compares classes; "
            'for a model with several outputs give metrics by output, as in metrics={"price": ["r2"]}'
        )
    of_points = loss is not None and layer_class(loss).labels.per_point
    if kind == "kSegmentationScore" and not of_points:
        raise UserError(
            f"the metric {metric!r} needs probabilities of the classes of each point: train images with "
            'loss="sparse_categorical_crossentropy" or "dice"'
        )
    if loss is not None and (
        loss.type in PROBABILITIES
        or loss.type_name in ("kHingeLoss", "kClassSoftmaxLoss")
        or (of_points and kind in ("kSegmentationScore", "kReliability"))
    ):
        return loss.name or ""
    if kind == "kPerplexity":
        raise UserError(
            "the metric 'perplexity' needs probabilities of classes: train with "
            'loss="sparse_categorical_crossentropy" or nn.ClassSoftmaxLoss'
        )
    return output


def _by_layer(
    metrics: Sequence[str], loss: LayerConf | None, points: Mapping[str, bool]
) -> dict[tuple[str, str], list[str]]:
    """Group the metrics that the loss does not report by the layers that report them."""
    of_loss = {"loss"} if loss is None else metric_names([loss.type_name.removeprefix("k")])
    layers: dict[tuple[str, str], list[str]] = {}
    for metric in metrics:
        if metric not in of_loss:
            layer = reporting(metric)
            layer = TYPES["bias"] if points and metric in FIELDS else layer
            if layer:
                layers.setdefault(layer, []).append(metric)
    return layers


def _settings(kind: str, names: Sequence[str], loss: LayerConf | None, points: Mapping[str, bool]) -> dict[str, Any]:
    """Return a metric layer's settings, from the loss or the metrics' names."""
    if kind in ("kFieldError", "kSegmentationScore"):
        return {f"{kind[1:].lower()}_conf": points}
    if kind == "kForecastScores":
        return {"forecastscores_conf": {**points, **_form_settings(loss, names[0])}}
    if kind == "kReliability":
        return {"reliability_conf": {name: value for name, value in points.items() if name == "weighted"}}
    if kind == GATHERED[0]:
        return {"gatheredmetrics_conf": {"metric": names}}
    match = TOP.fullmatch(names[0])
    return {"topkaccuracy_conf": {"k": int(match[1])}} if match else {}


def _point_settings(loss: LayerConf | None) -> dict[str, bool]:
    """Copy a loss's settings that select and weigh points of fields."""
    cls = None if loss is None else layer_class(loss).Conf
    settings = None if loss is None or cls is None else loss.settings_of(cls)
    return {name: True for name in ("masked", "weighted") if getattr(settings, name, False)}


def _form_settings(loss: LayerConf | None, metric: str) -> dict[str, Any]:
    """Copy the loss setting that says how several predictions of one number are read."""
    cls = None if loss is None else layer_class(loss)
    if loss is None or cls is None or cls.Conf is None or not getattr(cls, "predicts_several", False):
        raise UserError(
            f"the metric {metric!r} needs predictions that say how sure they are: train with nn.QuantileLoss, "
            "nn.DistributionLoss or nn.EnsembleLoss"
        )
    settings = loss.settings_of(cls.Conf)
    return {name: getattr(settings, name) for name in FORM if hasattr(settings, name)}


def _check_reports(conf: Any, names: Sequence[str], shape: tuple[int, ...] | None) -> None:
    """Raise UserError for a metric that does not fit the number of classes."""
    count = shape[-1] if shape else 1
    for name in names:
        if conf.type_name == "kConfusionMatrix" and name in ("precision", "recall", "f1") and count > 2:
            raise UserError(
                f"the metric {name!r} is of class 1 of two, but the model has {count} outputs; write "
                f"'macro_{name}', the mean over classes, or '{name}_by_class'"
            )
        if (match := TOP.fullmatch(name)) and int(match[1]) > count:
            raise UserError(f"the metric {name!r} needs {match[1]} classes, but the model has {count} outputs")


def metric_function(name: str) -> Callable[..., Name]:
    """Make a stand-in for one of Keras's metric classes: called, it returns the name that ``compile`` accepts."""

    def metric(k: int = 5, **others: Any) -> Name:
        known = ["name", *(["num_classes"] if name == "MeanIoU" else []), *(["k"] if "{}" in NAMES[name] else [])]
        check_names(name, known, others)
        return Name(NAMES[name].format(k))

    metric.__name__ = metric.__qualname__ = name
    return metric


FUNCTIONS = {name: metric_function(name) for name in NAMES}

__getattr__ = missing_names(__name__, public="dsinga.nn.metrics", derived=lambda: FUNCTIONS)
