"""Merges the metrics of a net's layers, and puts the layer's name before a metric that several layers report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsinga.layers.interface.context import Context
from dsinga.layers.metrics.metric_state import MetricState
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.ops.types import NotCapturable

COPY = re.compile(r"^\d+#")  # prefix of the name of a layer's copy for a time step
# A sum may also be a MetricState of dsinga.layers.metrics.metric_state, which adds up with others of its kind.
Metrics = dict[str, tuple[Any, float]]
Reports = Sequence[tuple[str, Mapping[str, tuple[Any, float]]]]


def add_metrics(parts: Iterable[Metrics]) -> Metrics:
    """Return the sums and counts of several parts, added in their order."""
    sums: Metrics = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
    return sums


def read_metrics(reports: Iterable[tuple[str, Mapping[str, tuple[float, float]]]], ops: Ops) -> Reports:
    """Return the metrics of layers as Python numbers; numbers on a device are copied to the host together."""
    unread = UnreadMetrics(reports)
    return unread.with_numbers(ops.read(unread.arrays)) if unread.arrays else unread.reports


class UnreadMetrics:
    """The metrics of the layers in a pass; some of their numbers are still on a device.

    Attributes:
        reports: the metrics of each layer, by its name.
        arrays: those numbers of them that are on a device.
    """

    def __init__(self, reports: Iterable[tuple[str, Mapping[str, tuple[Any, float]]]]):
        self.reports = list(reports)
        self._places = [
            (k, name, index)
            for k, (_, metrics) in enumerate(self.reports)
            for name, metric in metrics.items()
            for index in range(2)
            if type(metric[index]) not in (int, float) and not isinstance(metric[index], MetricState)
        ]
        self.arrays = [self.reports[k][1][name][index] for k, name, index in self._places]

    def with_numbers(self, numbers: Sequence[float]) -> Reports:
        """Return the metrics of each layer with ``numbers`` in place of the arrays on the device."""
        reports = list(self.reports)
        for (k, name, index), number in zip(self._places, numbers, strict=True):
            layer, metrics = reports[k]
            total, count = metrics[name]
            reports[k] = layer, {**metrics, name: (total, number) if index else (number, count)}
        return reports


def defer_metrics(reports: Iterable[tuple[str, Mapping[str, tuple[Any, float]]]], ctx: Context) -> Metrics:
    """Register the metrics of a recorded pass in ``ctx.unread``, to be read after each replay; return no metrics."""
    assert ctx.unread is not None
    unread = UnreadMetrics(reports)
    if any(isinstance(total, MetricState) for _, metrics in unread.reports for total, _ in metrics.values()):
        raise NotCapturable("a metric is computed in host memory")
    ctx.unread.append(unread)
    if unread.arrays:
        ctx.ops.defer_read(unread.arrays)
    return {}


def merge_metrics(reports: Reports) -> Metrics:
    """Merge the metrics of the layers of a net, which are in the order of the net, into one dictionary.

    Where several layers report a metric of one name, each layer's is called ``<layer>/<metric>``; the plain name then
    has the total of the losses, which training minimises, and for other metrics that of the last layer. The copies of
    an unrolled layer count as one layer, whose metrics are means over the steps.
    """
    reports = _join_copies(reports)
    if len(reports) < 2:
        return dict(reports[0][1]) if reports else {}
    shared = Counter(name for _, metrics in reports for name in metrics)
    merged: Metrics = {}
    by_layer: Metrics = {}
    for layer, metrics in reports:
        for name, value in metrics.items():
            if shared[name] > 1:
                by_layer[f"{layer}/{name}"] = value
            merged[name] = _total(merged[name], value) if name in merged and name == "loss" else value
    return merged | by_layer


def _join_copies(reports: Reports) -> Reports:
    """Sum the metrics of the copies ``0#x``, ``1#x``, ... of a layer x, under the name x."""
    joined: dict[str, Metrics] = {}
    for name, metrics in reports:
        if not metrics:  # most layers have none
            continue
        sums = joined.setdefault(COPY.sub("", name) if "#" in name else name, {})
        for metric, (total, count) in metrics.items():
            before = sums.get(metric, (0.0, 0))
            sums[metric] = before[0] + total, before[1] + count
    return list(joined.items())


def _total(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Return the sum of the means ``first`` and ``second`` as (sum, count) with the count of ``first``."""
    return first[0] + (second[0] * first[1] / second[1] if second[1] else 0.0), first[1]


def report_metrics(net: NeuralNet, reports: Reports) -> Metrics:
    """Merge the metrics of the layers of ``net`` under the names that a single worker reports.

    A worker of several does not know the metrics of layers on other workers: it calls all of its own
    ``<layer>/<metric>``, and :func:`name_metrics` names the sums over workers.
    """
    if not net.bridged:
        return merge_metrics(reports)
    return {f"{layer}/{name}": value for layer, metrics in reports for name, value in metrics.items()}


def declared_metrics(net: NeuralNet) -> list[str]:
    """Return the names, as a single worker reports them, of all metrics that layers of ``net`` declare.

    A layer of the user's may report others besides.
    """
    return list(
        merge_metrics([(node.layer.name, dict.fromkeys(node.layer.metric_names, (0, 0))) for node in net.nodes])
    )


def name_metrics(net: NeuralNet, sums: Metrics) -> Metrics:
    """Rename metrics summed over the workers of ``net`` to the names that a single worker reports."""
    by_layer: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in net.positions}
    for key, value in sums.items():
        layers = [key[:end] for end, letter in enumerate(key) if letter == "/" and key[:end] in by_layer]
        if not layers:  # a single worker has named them already
            return sums
        by_layer[layers[-1]][key[len(layers[-1]) + 1 :]] = value
    return merge_metrics(list(by_layer.items()))
