"""Metrics of runs on the endpoint /metrics of Dask's scheduler, for Prometheus.

A run has the labels ``run`` and ``job``, until ten minutes after its end. It needs prometheus-client.

- ``dsinga_steps_total``: steps of all worker groups.
- ``dsinga_step``, ``dsinga_train_steps``: the step of the first group, and the last step of the job.
- ``dsinga_samples_per_second``, while the run trains.
- ``dsinga_metric`` {phase, metric}: the last value of the loss and the other metrics.
- ``dsinga_worker_seconds_total`` {kind: compute, exchange, data}: seconds of all workers.
- ``dsinga_moved_bytes_total`` {kind: crossing, within}: bytes between processes, and within one.
- ``dsinga_staleness`` {group}: the mean staleness of gradients.
- ``dsinga_runs`` {state: waiting, running}, without ``run`` and ``job``: the number of runs.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import Any

import prometheus_client
from distributed.core import Status
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dsinga.cluster.dashboard.history import RunHistory, queued_runs
from dsinga.cluster.dashboard.records import KINDS, RunRecord

# Seconds after its end that a run has metrics: long enough for the last values to be read, short enough that the number
# of time series stays bounded.
KEEP_SECONDS = 600


class RunCollector:
    """Gives Prometheus the metrics of the runs on this process's schedulers."""

    def __init__(self) -> None:
        self._schedulers: weakref.WeakKeyDictionary[RunHistory, Any] = weakref.WeakKeyDictionary()

    def add(self, history: RunHistory, scheduler: Any) -> None:
        """Include a history, and its scheduler's queue, as long as both live."""
        self._schedulers[history] = weakref.ref(scheduler)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of runs that train or ended recently, and the number of runs by state."""
        since = time.time() - KEEP_SECONDS
        records = [record for history, _ in self._open() for record in history.runs.values()]
        records = [record for record in records if record.ended is None or record.ended > since]
        yield from _run_metrics(records)
        yield self._runs()

    def _open(self) -> list[tuple[RunHistory, Any]]:
        pairs = [(history, reference()) for history, reference in list(self._schedulers.items())]
        return [(history, scheduler) for history, scheduler in pairs if scheduler and scheduler.status != Status.closed]

    def _runs(self) -> Metric:
        family = GaugeMetricFamily("dsinga_runs", "Number of runs by state", labels=["state"])
        counts = {"waiting": 0, "running": 0}
        for history, scheduler in self._open():
            counts["waiting"] += sum(record["state"] == "waiting" for record in queued_runs(scheduler).values())
            counts["running"] += sum(record.ended is None for record in history.runs.values())
        for state, count in counts.items():
            family.add_metric([state], count)
        return family


_collector: RunCollector | None = None


def collect_runs(history: RunHistory, scheduler: Any) -> None:
    """Add the metrics of a scheduler's runs to the endpoint /metrics."""
    global _collector
    if _collector is None:
        _collector = RunCollector()
        prometheus_client.REGISTRY.register(_collector)
    _collector.add(history, scheduler)


def _run_metrics(records: list[RunRecord]) -> Iterator[Metric]:
    labels = ["run", "job"]
    steps = CounterMetricFamily("dsinga_steps", "Steps that all worker groups have done", labels=labels)
    position = GaugeMetricFamily("dsinga_step", "The step of worker group 0", labels=labels)
    last_step = GaugeMetricFamily("dsinga_train_steps", "The last step of the job", labels=labels)
    speed = GaugeMetricFamily("dsinga_samples_per_second", "Samples per second of all worker groups", labels=labels)
    metric = GaugeMetricFamily(
        "dsinga_metric", "The last value of a metric, such as the loss, by phase", labels=[*labels, "phase", "metric"]
    )
    seconds = CounterMetricFamily(
        "dsinga_worker_seconds", "Seconds that workers compute, exchange and wait for data", labels=[*labels, "kind"]
    )
    moved = CounterMetricFamily(
        "dsinga_moved_bytes", "Bytes moved between processes (crossing) or within one", labels=[*labels, "kind"]
    )
    staleness = GaugeMetricFamily(
        "dsinga_staleness", "Mean staleness of the gradients of a worker group, in updates", labels=[*labels, "group"]
    )
    for record in records:
        names = [record.run, record.job]
        steps.add_metric(names, record.totals["steps"])
        position.add_metric(names, record.step)
        last_step.add_metric(names, record.train_steps)
        if record.ended is None and record.speed.last is not None:
            speed.add_metric(names, record.speed.last)
        for (phase, name), value in _last_metrics(record).items():
            metric.add_metric([*names, phase, name], value)
        for kind in KINDS:
            seconds.add_metric([*names, kind], record.totals[kind])
        for kind in ("crossing", "within"):
            moved.add_metric([*names, kind], record.totals[kind])
        for group, series in record.staleness.items():
            staleness.add_metric([*names, str(group)], series.last or 0.0)
    yield from (steps, position, last_step, speed, metric, seconds, moved, staleness)


def _last_metrics(record: RunRecord) -> dict[tuple[str, str], float]:
    values = {("train", name): series.last for name, series in record.last_batches.items()}
    values |= {key: series.last for key, series in record.metrics.items()}
    return {key: value for key, value in values.items() if value is not None}
