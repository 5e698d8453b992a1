"""A plan: the priced partitionings of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsinga.planner.memory import FIXED, Memory
from dsinga.planner.simulate import Prediction


class Alternative(NamedTuple):
    """A priced partitioning over ``workers`` workers.

    Attributes:
        name: the name of the strategy.
        workers: the number of workers.
        words: the cuts as text.
        prediction: the cost of an iteration.
        efficiency: t1 / (n·tn).
        memory: that of the worker that needs most; None where the net is approximated, not partitioned.
    """

    name: str
    workers: int
    words: str
    prediction: Prediction
    efficiency: float
    memory: Memory | None = None

    def figures(self) -> dict[str, Any]:
        """Return the alternative as plain numbers and text, for JSON."""
        return {
            "name": self.name,
            "workers": self.workers,
            "ms_per_iteration": 1e3 * self.prediction.seconds,
            "compute_ms": 1e3 * self.prediction.compute,
            "sent_bytes": self.prediction.sent,
            "received_bytes": self.prediction.received,
            "memory_bytes": self.memory.peak if self.memory else self.prediction.memory + FIXED,
            "speedup": self.efficiency * self.workers,
            "efficiency": self.efficiency,
            "partitioning": self.words,
        }


@dataclass(frozen=True)
class Plan:
    """The priced partitionings of a job.

    Attributes:
        job: the name of the job.
        batch: rows of a batch.
        where: a text that says where the workers of ``alternatives`` run.
        alternatives: those for one number of workers, cheapest first.
        scaling: a text that says where the workers of ``curve`` run.
        curve: some strategies for 1, 2, 4, ... workers.
        snapshot_bytes: the memory of the driver for snapshots, by which a run survives the loss of Dask workers.
        warning: a text that says why times may be too long, or "".
    """

    job: str
    batch: int
    where: str
    alternatives: Sequence[Alternative]
    scaling: str
    curve: Sequence[Alternative]
    snapshot_bytes: int
    warning: str = ""

    def figures(self) -> dict[str, Any]:
        """Return the plan as plain numbers and text, for JSON."""
        rows = {
            name: [alternative.figures() for alternative in getattr(self, name)] for name in ("alternatives", "curve")
        }
        texts = {"job": self.job, "batch": self.batch, "where": self.where, "scaling": self.scaling}
        return {**texts, "snapshot_bytes": self.snapshot_bytes, **rows} | (
            {"warning": self.warning} if self.warning else {}
        )
