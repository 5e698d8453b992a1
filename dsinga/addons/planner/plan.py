"""A plan: a job's partitionings with their predicted times, and the cost of training on several sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsinga.addons.planner.fitting import MemoryFit
from dsinga.addons.planner.link import Link
from dsinga.addons.planner.simulate import Prediction
from dsinga.base.errors import UserError
from dsinga.cluster.server.compression import BITS
from dsinga.cutting.worker_memory import FIXED, Memory


class Alternative(NamedTuple):
    """A partitioning over ``workers`` workers with its predicted time.

    Attributes:
        efficiency: the parallel efficiency t1 / (n·tn).
        memory: the neediest worker's; None if the net is approximated, not partitioned.
        fit: micro-batches and recomputation for a given memory, or None.
    """

    name: str
    workers: int
    text: str
    prediction: Prediction
    efficiency: float
    memory: Memory | None = None
    fit: MemoryFit | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory of the worker that needs most."""
        return self.memory.peak if self.memory else self.prediction.memory + FIXED

    def figures(self) -> dict[str, Any]:
        """Return the alternative as a dict of figures for JSON."""
        return {
            "name": self.name,
            "workers": self.workers,
            "ms_per_iteration": 1e3 * self.prediction.seconds,
            "compute_ms": 1e3 * self.prediction.compute,
            "sent_bytes": self.prediction.sent,
            "received_bytes": self.prediction.received,
            "memory_bytes": self.memory_bytes,
            "speedup": self.efficiency * self.workers,
            "efficiency": self.efficiency,
            "partitioning": self.text,
        } | ({} if self.fit is None else {"micro_batches": self.fit.micro_batches, "recompute": self.fit.recompute})


@dataclass(frozen=True)
class Plan:
    """The partitionings of a job with their predicted times.

    Attributes:
        where: the place of the workers of ``alternatives``.
        alternatives: for one number of workers, cheapest first.
        scaling: the place of the workers of ``curve``.
        curve: some strategies for 1, 2, 4, ... workers.
        snapshot_bytes: the driver's memory for snapshots, with which a run survives lost Dask workers.
        warning: why times may be too long, or "".
        precisions: an iteration's seconds in kFloat32 and in kBF16, with the cuts of "auto"; empty without bfloat16.
        together: the number of workers on one machine, threads of one process.
        memory: the memory of a machine like this one in bytes; 0 if unknown.
        limit: the memory of each worker in bytes that ``alternatives`` fit into, or None.
        sites: the cost of training on several sites, or None.
    """

    job: str
    batch: int
    where: str
    alternatives: Sequence[Alternative]
    scaling: str
    curve: Sequence[Alternative]
    snapshot_bytes: int
    warning: str = ""
    precisions: Mapping[str, float] = field(default_factory=dict)
    together: int = 1
    memory: int = 0
    limit: int | None = None
    sites: SitePlan | None = None

    def figures(self) -> dict[str, Any]:
        """Return the plan as a dict of figures for JSON."""
        alternatives = [{**row.figures(), "fits": self._fits(row)} for row in self.alternatives]
        return {
            "job": self.job,
            "batch": self.batch,
            "where": self.where,
            "scaling": self.scaling,
            "snapshot_bytes": self.snapshot_bytes,
            "machine_bytes": self.memory,
            **({} if self.limit is None else {"limit_bytes": self.limit}),
            **({} if self.sites is None else {"sites": self.sites.figures()}),
            "precisions": {name: 1e3 * seconds for name, seconds in self.precisions.items()},
            "alternatives": alternatives,
            "curve": [row.figures() for row in self.curve],
        } | ({"warning": self.warning} if self.warning else {})

    def _fits(self, row: Alternative) -> bool:
        """Whether a machine like this one has memory for all workers; libraries count once."""
        own = row.memory_bytes - FIXED
        return not self.memory or FIXED + own * min(row.workers, self.together) <= self.memory


SHARE = 0.05  # of the time, that exchange between sites may take


class OuterStep(NamedTuple):
    """The predicted cost of a site's outer step with one compression, and the ``sync_freq`` and ``delay`` that suit it.

    Attributes:
        size: the bytes that the site sends, and receives.
        sync_freq: the smallest period, in steps, with which outer steps take at most ``SHARE`` of the time.
        delay: the steps between sending and applying that hide it, if ``sync_freq`` is larger.
    """

    compression: str
    size: int
    seconds: float
    sync_freq: int
    delay: int


class SitePlan(NamedTuple):
    """The cost of training the whole net on each of several sites.

    Attributes:
        step_seconds: of a step within a site.
        synchronous_size: the bytes that a site sends in a step of synchronous training by all sites.
        outer: the price of an outer step for each compression.
    """

    sites: int
    step_seconds: float
    synchronous_size: int
    synchronous_seconds: float
    outer: Sequence[OuterStep]

    def figures(self) -> dict[str, Any]:
        """Return the cost of sites as a dict of figures for JSON."""
        return {
            "sites": self.sites,
            "ms_per_iteration": 1e3 * self.step_seconds,
            "synchronous": {"bytes": self.synchronous_size, "ms": 1e3 * self.synchronous_seconds},
            "outer_steps": [
                {
                    "compression": step.compression,
                    "bytes": step.size,
                    "ms": 1e3 * step.seconds,
                    "sync_freq": step.sync_freq,
                    "delay": step.delay,
                }
                for step in self.outer
            ],
        }


def price_sites(sites: int, numbers: int, step_seconds: float, link: Link) -> SitePlan:
    """Price training on ``sites`` sites, linked all to all, for params of ``numbers`` numbers.

    ``step_seconds`` is a step's time within a site. Synchronous training sends 4-byte gradients in a ring.
    """
    if sites < 2:
        raise UserError(f"sites must be at least 2, the number of places that train together, not {sites}")
    outer = []
    for compression, bits in BITS.items():
        size = (sites - 1) * math.ceil(numbers * bits / 8)
        seconds = link.seconds(size)
        period = max(1, math.ceil(seconds * (1 - SHARE) / SHARE / step_seconds))
        outer.append(OuterStep(compression.name, size, seconds, period, math.ceil(seconds / step_seconds)))
    ring = math.ceil(2 * (sites - 1) / sites * 4 * numbers)
    return SitePlan(sites, step_seconds, ring, 2 * (sites - 1) * link.latency + ring / link.bandwidth, tuple(outer))


def site_lines(figures: Mapping[str, Any]) -> list[str]:
    """Describe the figures of :meth:`SitePlan.figures` in sentences, without the table of outer steps."""
    synchronous, step = figures["synchronous"], figures["ms_per_iteration"]
    return [
        f"{figures['sites']} sites that average their params, each trains in {step:,.2f} ms per iteration; all "
        f"together synchronously would send for another {synchronous['ms']:,.2f} ms",
        f"sync_freq: with these steps between two outer steps these take at most {SHARE:.0%} of the time; delay: with "
        "these steps until outer gradients are applied, and a larger sync_freq, they take none",
    ]
