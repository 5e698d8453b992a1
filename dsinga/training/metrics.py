"""Merges the metrics of a net's layers into one dictionary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsinga.base.errors import UserError
from dsinga.layers.interface.context import Context
from dsinga.layers.metrics.metric_state import MetricState
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.ops.block_sums import add_in_tree
from dsinga.ops.types import NotCapturable

COPY = re.compile(r"^\d+#")  # prefix of the name of a layer's copy for a time step
# A sum may also be a MetricState of dsinga.layers.metrics.metric_state, which adds up with others of its kind.
Metrics = dict[str, tuple[Any, float]]
Reports = Sequence[tuple[str, Mapping[str, tuple[Any, float]]]]


def add_metrics(parts: Iterable[Metrics]) -> Metrics:
    """Add up the metrics of several parts of a batch or run: sums and counts by name."""
    sums: Metrics = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + count)
    return sums


def add_blocks(parts: Mapping[int, Metrics]) -> Metrics:
    """Add up the metrics of a batch's blocks, by number, in the tree of :mod:`dsinga.ops.block_sums`."""
    return add_in_tree(parts, lambda left, right: add_metrics((left, right)))


def read_metrics(reports: Iterable[tuple[str, Mapping[str, tuple[float, float]]]], ops: Ops) -> Reports:
    """Turn metrics of layers into Python numbers; copy all numbers on a device at once.

    Raises UserError for an array of several numbers.
    """
    unread = UnreadMetrics(reports)
    if not unread.arrays:
        return unread.reports
    try:
        return unread.with_numbers(ops.read(unread.arrays))
    except TypeError as error:
        raise unread.fault or error from None


class UnreadMetrics:
    """The metrics of a pass while some numbers are still on a device."""

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

    @property
    def fault(self) -> UserError | None:
        """The error that names the first metric whose sum or count is an array of several numbers."""
        for (k, name, index), array in zip(self._places, self.arrays, strict=True):
            if shape := getattr(array, "shape", ()):
                what = ("sum", "count")[index]
                return UserError(
                    f"layer {self.reports[k][0]!r}: the {what} of its metric {name!r} is an array of the shape "
                    f"{shape}; return one number, as in metrics={{{name!r}: (values.sum(), len(values))}}"
                )
        return None

    def with_numbers(self, numbers: Sequence[float]) -> Reports:
        """Return the metrics of each layer, with ``numbers`` copied from the device."""
        reports = list(self.reports)
        for (k, name, index), number in zip(self._places, numbers, strict=True):
            layer, metrics = reports[k]
            total, count = metrics[name]
            reports[k] = layer, {**metrics, name: (total, number) if index else (number, count)}
        return reports


def defer_metrics(reports: Iterable[tuple[str, Mapping[str, tuple[Any, float]]]], ctx: Context) -> Metrics:
    """Remember where a recorded pass computes its metrics, to read them after each replay."""
    assert ctx.unread is not None
    unread = UnreadMetrics(reports)
    if any(isinstance(total, MetricState) for _, metrics in unread.reports for total, _ in metrics.values()):
        raise NotCapturable("a metric is computed in host memory")
    ctx.unread.append(unread)
    if unread.arrays:
        ctx.ops.defer_read(unread.arrays)
    return {}


def merge_metrics(reports: Reports) -> Metrics:
    """Merge the metrics of a net's layers into one dictionary, in the order of the net.

    If several layers report the same metric, each is called ``<layer>/<metric>``. The plain name then holds the total
    of losses, which training minimises, or the last layer's value for other metrics. Copies of an unrolled layer count
    as one layer, with means over the steps.
    """
    reports = _join_copies(reports)
    if len(reports) < 2:
        return dict(reports[0][1]) if reports else {}
    names = [name for _, metrics in reports for name in metrics]
    merged: Metrics = {}
    by_layer: Metrics = {}
    for layer, metrics in reports:
        for name, value in metrics.items():
            if names.count(name) > 1:
                by_layer[f"{layer}/{name}"] = value
            merged[name] = _total(merged[name], value) if name in merged and name == "loss" else value
    return merged | by_layer


def _join_copies(reports: Reports) -> Reports:
    """Add up the metrics of an unrolled layer's time steps: copies ``0#x``, ``1#x``, ... of x."""
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
    """Add two means, given as (sum, count); keep the count of ``first``."""
    return first[0] + (second[0] * first[1] / second[1] if second[1] else 0.0), first[1]


def report_metrics(net: NeuralNet, reports: Reports) -> Metrics:
    """Merge the metrics of one worker's layers under names that other workers' also get.

    One of several workers uses ``<layer>/<metric>``; :func:`name_metrics` then names the sums.
    """
    if not net.bridged:
        return merge_metrics(reports)
    return {f"{layer}/{name}": value for layer, metrics in reports for name, value in metrics.items()}


def declared_metrics(net: NeuralNet) -> list[str]:
    """Return the names of the metrics that a net's layers declare, as a training run reports them."""
    return list(
        merge_metrics([(node.layer.name, dict.fromkeys(node.layer.metric_names, (0, 0))) for node in net.nodes])
    )


def name_metrics(net: NeuralNet, sums: Metrics) -> Metrics:
    """Give metrics that were summed over workers the names that users know."""
    by_layer: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in net.positions}
    for key, value in sums.items():
        layers = [key[:end] for end, letter in enumerate(key) if letter == "/" and key[:end] in by_layer]
        if not layers:  # a single worker has named them already
            return sums
        by_layer[layers[-1]][key[len(layers[-1]) + 1 :]] = value
    return merge_metrics(list(by_layer.items()))
