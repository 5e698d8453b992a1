"""Metrics under the names that people see: short, and after the layer too where several layers report one."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dsinga.net import NeuralNet
from dsinga.ops import Ops

COPY = re.compile(r"^\d+#")  # before the name of a layer: a time step of it
Metrics = dict[str, tuple[float, float]]
Reports = Sequence[tuple[str, Mapping[str, tuple[float, float]]]]


def add_metrics(parts: Iterable[Metrics]) -> Metrics:
    """Return the sums and counts of several parts, added in their order."""
    sums: Metrics = {}
    for name, (total, count) in itertools.chain.from_iterable(part.items() for part in parts):
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + total, before[1] + count)
    return sums


def read_metrics(reports: Iterable[tuple[str, Mapping[str, tuple[float, float]]]], ops: Ops) -> Reports:
    """Return the metrics of layers as numbers of the host: sums that lie on a device are read by one copy."""
    reports = list(reports)
    places = [(k, name) for k, (_, own) in enumerate(reports) for name in own if type(own[name][0]) not in (int, float)]
    if places:
        numbers = ops.read([reports[k][1][name][0] for k, name in places])
        for (k, name), number in zip(places, numbers, strict=True):
            layer, own = reports[k]
            reports[k] = layer, {**own, name: (number, own[name][1])}
    return reports


def merge_metrics(reports: Reports) -> Metrics:
    """Join the metrics of the layers, given with their names in the order of the net.

    Where several layers report a metric of the same name, each layer's is called ``<layer>/<metric>``. The name alone
    stands for the total of losses, whose gradient training follows, and else for what the last of the layers reports.
    Copies of an unrolled layer count as one layer, whose metrics are means over their steps.
    """
    reports = _join_copies(reports)
    shared = Counter(name for _, metrics in reports for name in metrics)
    merged: Metrics = {}
    own: Metrics = {}
    for layer, metrics in reports:
        for name, value in metrics.items():
            if shared[name] > 1:
                own[f"{layer}/{name}"] = value
            merged[name] = _total(merged[name], value) if name in merged and name == "loss" else value
    return merged | own


def _join_copies(reports: Reports) -> Reports:
    """Add up what the copies ``0#x``, ``1#x``, ... of a layer report, under the name x."""
    joined: dict[str, Metrics] = {}
    for name, metrics in reports:
        if not metrics:  # as of most layers, in each iteration
            continue
        own = joined.setdefault(COPY.sub("", name), {})
        for metric, (total, count) in metrics.items():
            before = own.get(metric, (0.0, 0))
            own[metric] = before[0] + total, before[1] + count
    return list(joined.items())


def _total(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the sum of two means, as (sum, count) with the count of ``one``: parts of a batch still add up."""
    return one[0] + (other[0] * one[1] / other[1] if other[1] else 0.0), one[1]


def report_metrics(net: NeuralNet, reports: Reports) -> Metrics:
    """Join the metrics of the layers of ``net``.

    One worker of several does not know what layers elsewhere report: all of its metrics are called
    ``<layer>/<metric>``, until :func:`name_metrics` names the sums.
    """
    if not net.bridged:
        return merge_metrics(reports)
    return {f"{layer}/{name}": value for layer, metrics in reports for name, value in metrics.items()}


def declared_metrics(net: NeuralNet) -> list[str]:
    """Return the names of all metrics that the layers of ``net`` declare, as people see them.

    A layer of the user's may report others besides.
    """
    return list(
        merge_metrics([(node.layer.name, dict.fromkeys(node.layer.metric_names, (0, 0))) for node in net.nodes])
    )


def name_metrics(net: NeuralNet, sums: Metrics) -> Metrics:
    """Give the sums of what the workers of ``net`` have reported the names that they have if one worker runs it all."""
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in net.positions}
    for key, value in sums.items():
        layers = [key[:end] for end, letter in enumerate(key) if letter == "/" and key[:end] in found]
        if not layers:  # it has its name: the net was not cut
            return sums
        found[layers[-1]][key[len(layers[-1]) + 1 :]] = value
    return merge_metrics(list(found.items()))
