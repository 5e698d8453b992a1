"""Metrics under the names that people see: short where one layer reports a metric, else after the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.net import NeuralNet

Metrics = dict[str, tuple[float, float]]
Reports = Sequence[tuple[str, Mapping[str, tuple[float, float]]]]


def merge_metrics(reports: Reports) -> Metrics:
    """Join the metrics of the layers, given with their names in the order of the net.

    Where several layers report a metric of the same name, the last one keeps it, and the others' are called
    ``<layer>/<metric>``: auxiliary losses stand before the loss that counts.
    """
    merged: Metrics = {}
    for layer, metrics in reversed(reports):
        for name, value in list(metrics.items())[::-1]:
            merged[f"{layer}/{name}" if name in merged else name] = value
    return dict(reversed(merged.items()))


def report_metrics(net: NeuralNet, reports: Reports) -> Metrics:
    """Join the metrics of the layers of ``net``.

    One worker of several does not know what layers elsewhere report: all of its metrics are called
    ``<layer>/<metric>``, until :func:`name_metrics` names the sums.
    """
    if not net.bridged:
        return merge_metrics(reports)
    return {f"{layer}/{name}": value for layer, metrics in reports for name, value in metrics.items()}


def name_metrics(net: NeuralNet, sums: Metrics) -> Metrics:
    """Give the sums of what the workers of ``net`` have reported the names that they have if one worker runs it all."""
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in net.positions}
    for key, value in sums.items():
        layers = [key[:end] for end, letter in enumerate(key) if letter == "/" and key[:end] in found]
        if not layers:  # it has its name: the net was not cut
            return sums
        found[layers[-1]][key[len(layers[-1]) + 1 :]] = value
    return merge_metrics(list(found.items()))
