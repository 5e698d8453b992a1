"""Layer kFieldError: errors and anomaly correlation of predicted fields, by channel and over all channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape
from dsinga.layers.interface.region import Region
from dsinga.layers.losses.field_targets import MASKED, WEIGHTED, FieldTargets
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums, errors_of
from dsinga.layers.metrics.metric_state import ArraySum
from dsinga.layers.records.label import required_labels
from dsinga.ops.layout import point_blocks

CLIMATOLOGY = 2  # the position of the source with the climatology


@register("layer", kFieldError=820)
class FieldError(Layer):
    """Metrics of predicted fields: "rmse", "mae", "bias" and, with a climatology, "anomaly_correlation".

    The first source gives predictions x, (B, C, *space) or as many numbers a row. The second gives labels y, (B, C,
    *space), with ``weighted`` (B, C + 1, *space). With e = x - y and weights w (the last channel, else 1):

    - "rmse" is √(Σ w·e² / Σ w), "mae" Σ w·|e| / Σ w, and "bias" Σ w·e / Σ w.
    - "anomaly_correlation" is the correlation of x - c with y - c, weighted by w. The unweighted mean over all records
      and points is first subtracted from each, as in WeatherBench's compute_weighted_acc (Rasp et al., 2020). For
      several channels it is the mean.

    c is the climatology: a setting, or a third source (B, C, *space). With ``masked``, labels that are NaN do not
    count. The sums are float64 over all records of a test. The feature is x. With several channels there are also lists
    such as "rmse_by_channel", or, with names, metrics such as "rmse_t2m".
    """

    class Conf(Settings):
        """Settings of kFieldError."""

        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)
        channel: list[str] = setting([], "the names of the channels of the labels, for metrics of each")
        climatology: list[float] = setting(
            [], "the numbers that are subtracted for anomalies: one for each channel, or for each point of it"
        )

    settings: Conf
    source_kind = SourceKind.kVectors
    source_count = 2
    optional_sources = 1
    labels = Labels(source=1, floats=True)
    is_output = True
    cut = Cut(gathered_because="compares whole rows with their labels", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        has_climatology = bool(self.settings.climatology) or len(self.source_shapes) > CLIMATOLOGY
        names = ("rmse", "mae", "bias", *(["anomaly_correlation"] if has_climatology else []))
        self.metric_names = (*names, *(f"{name}_{channel}" for name in names for channel in self.settings.channel))
        if len(self.source_shapes[1]) > 1:  # (B,) may stand for labels that are not known before the first batch
            self._targets(self.source_shapes[1])

    def _targets(self, labels: Shape) -> FieldTargets:
        settings, rows = self.settings, self.source_shapes[0][0]
        targets = FieldTargets(self, (rows, *labels[1:]), settings.masked, settings.weighted)
        if settings.channel and len(settings.channel) != targets.channels:
            text = f"channel has {len(settings.channel)} names, but the labels have {targets.channels} channels"
            raise self.fail(text, settings, "channel")
        size = targets.channels * math.prod(self._whole_space(labels[2:]))
        if settings.climatology and len(settings.climatology) not in (targets.channels, size):
            raise self.fail(
                f"climatology has {len(settings.climatology)} numbers; give one for each of {targets.channels} "
                f"channels, or {size} for all points",
                field="climatology",
            )
        for shape in self.source_shapes[CLIMATOLOGY:]:
            if math.prod(shape[1:]) != targets.size:
                raise self.fail(
                    f"takes a climatology from {self.source_name(CLIMATOLOGY)}, which gives {shape_text(shape)}; give "
                    f"{targets.channels} channels of {targets.points} points",
                    field="srclayers",
                )
        return targets

    def gathers_points_because(self) -> str:
        return "" if self.source_shapes[1][2:] == self.shape[2:] else "has other points than its labels"

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        return self.copy_for_region(region, source_shapes)

    def _whole_space(self, space: Shape) -> Shape:
        return space if self.region is None else self.region.whole((0, 0, *space))[2:]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[1])
        if self.region is not None:
            labels = self.region.take(labels)
        targets = self._targets(labels.shape)
        rows = len(labels)
        fields = labels.reshape(rows, targets.channels + targets.weighted, targets.points)
        targets.check_values(fields[:, : targets.channels], labels.shape[2:], ctx)
        x, *others = (ctx.ops.to_numpy(targets.fields(source, ctx.ops)) for source in (sources[0], *sources[2:]))
        climatology = others[0] if others else self._climatology(targets, labels.shape[2:])
        sums = np.zeros((5 if climatology is None else 12, targets.channels))
        for at_rows, at_points in point_blocks(x.shape):
            part = at_rows, slice(None), at_points
            of_part = climatology if climatology is None else np.broadcast_to(climatology, x.shape)[part]
            sums += field_sums(x[part], fields[part], targets, of_part)
        names = self.settings.channel or [""] * targets.channels
        parts = zip(range(targets.channels), names, sums.T, strict=True)
        metrics = {
            f"fields:{k},{name}": (ArraySum(of_channel), self.counted_rows(rows)) for k, name, of_channel in parts
        }
        return Output(sources[0], metrics=metrics)

    def _climatology(self, targets: FieldTargets, space: Shape) -> np.ndarray | None:
        """Return the climatology in the settings as (C, 1) or (C, points); None without one."""
        if not self.settings.climatology:
            return None
        numbers = np.array(self.settings.climatology)
        if self.region is not None and len(numbers) > targets.channels:
            numbers = self.region.of(numbers.reshape(targets.channels, *self._whole_space(space)), missing=1)
        return numbers.reshape(targets.channels, -1)


def field_sums(x: np.ndarray, fields: np.ndarray, targets: FieldTargets, climatology: np.ndarray | None) -> np.ndarray:
    """Add up the :func:`error_terms` of a batch by channel, (5, C) or (12, C), float64."""
    labels = fields[:, : targets.channels]
    valid = ~np.isnan(labels) if targets.masked else None
    weights = fields[:, targets.channels :] if targets.weighted else None
    terms = error_terms(x, labels, valid, weights, climatology)
    return np.stack([term.sum(axis=(0, 2), dtype=np.float64) for term in terms])


def error_terms(
    x: np.ndarray,
    labels: np.ndarray,
    valid: np.ndarray | None,
    weights: np.ndarray | None,
    climatology: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Return each number's contribution to the error sums: 5 arrays like ``labels``, 12 with a climatology.

    The sums are Σ w, the number of points, Σ w·e, Σ w·e² and Σ w·|e|. With a climatology follow Σ f, Σ a, Σ w·f, Σ w·a,
    Σ w·f², Σ w·a² and Σ w·f·a. Here f and a are the anomalies of the prediction ``x`` and the label. Without ``valid``
    all points count; without ``weights`` all count equally.
    """
    counted: Any = np.ones(labels.shape, bool) if valid is None else valid
    if valid is not None:
        labels, x = np.where(valid, labels, 0), np.where(valid, x, 0)
    errors = np.subtract(x, labels, dtype=np.float64)
    terms = [errors, errors**2, np.abs(errors)]
    factors: Any = counted if weights is None else weights * counted
    if valid is not None or weights is not None:
        terms = [factors * term for term in terms]
    terms = [factors, counted, *terms]
    if climatology is not None:
        f, a = ((numbers - climatology) * counted for numbers in (x, labels.astype(np.float64)))
        terms += [f, a, factors * f, factors * a, factors * f * f, factors * a * a, factors * f * a]
    return terms


@register("composed_metric", "fields")
def field_metrics(parts: Sums) -> MetricValues:
    """Compute metrics from error sums, over all channels and by channel if several; none if no point was counted."""
    keys = sorted(parts, key=lambda key: int(key.partition(",")[0]))
    names, sums = [key.partition(",")[2] for key in keys], np.stack([parts[key][0].sums for key in keys], axis=1)
    if not sums[1].any():
        return {}
    of_all = {**errors_of(sums.sum(axis=1, keepdims=True)), **correlations(sums)}
    result: dict[str, Any] = {name: _mean(values) for name, values in of_all.items()}
    by_channel: Mapping[str, np.ndarray] = {**errors_of(sums), **correlations(sums)}
    for name, values in by_channel.items():
        if names[0]:
            result |= {f"{name}_{channel}": float(v) for channel, v in zip(names, values, strict=True)}
        elif len(names) > 1:
            result[f"{name}_by_channel"] = values.tolist()
    return result


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def correlations(sums: np.ndarray) -> MetricValues:
    """Compute "anomaly_correlation" by channel if ``sums`` include anomalies; NaN for an anomaly that does not vary."""
    if len(sums) < 12:
        return {}
    weights, count, (f, a, wf, wa, wff, waa, wfa) = sums[0], np.maximum(sums[1], 1), sums[5:]
    f, a = f / count, a / count
    together = wfa - f * wa - a * wf + f * a * weights
    product = (wff - 2 * f * wf + f * f * weights) * (waa - 2 * a * wa + a * a * weights)
    return {"anomaly_correlation": together / np.sqrt(np.where(product > 0, product, np.nan))}
