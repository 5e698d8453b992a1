"""Records the metrics, speed and worker times of one run for the dashboard, in bounded memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# The largest number of points that a series keeps: more than a panel has pixels.
MAX_POINTS = 1000


class Series:
    """The points (x, y) of a curve in bounded memory: thinned evenly, except the last."""

    def __init__(self, most: int = MAX_POINTS):
        self._most = most
        self._kept: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None
        self._stride, self._count = 1, 0

    def add(self, x: float, y: float) -> None:
        """Add a point; if there are too many, keep only every second one."""
        self._last = (x, y)
        if self._count % self._stride == 0:
            self._kept.append(self._last)
        self._count += 1
        if len(self._kept) > self._most:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def __iter__(self) -> Iterator[tuple[float, float]]:
        yield from self._kept
        if self._last is not None and self._kept[-1] is not self._last:
            yield self._last

    def __len__(self) -> int:
        return len(self._kept) + (self._last is not None and self._kept[-1] is not self._last)

    @property
    def last(self) -> float | None:
        """The y of the last point, None for an empty series."""
        return None if self._last is None else self._last[1]

    def columns(self) -> tuple[list[float], list[float]]:
        """Return the x values and the y values of all points."""
        points = list(self)
        return [x for x, _ in points], [y for _, y in points]


# Columns of rows of the history that are no metrics.
NOT_METRICS = frozenset({"step", "phase", "time", "epoch"})
KINDS = ("compute", "exchange", "data")

Event = Mapping[str, Any]


class RunRecord:
    """What the dashboard shows of one run, read from its events (:mod:`dsinga.cluster.run_events`).

    Attributes:
        run, job, user: names.
        state: "running", or how it has ended.
        step, train_steps: the step of worker group 0, and the last one.
        begun, ended: when it began and ended (None while it runs), in seconds since 1970.
        metrics: the metric over the steps, by (phase, name).
        last_batches: by name, metrics of batches over the steps, for a job without training rows.
        speed: samples a second over time.
        crossing, within: bytes a second over time, between processes and within one.
        staleness: mean staleness of gradients over time, by worker group.
        sites: the time and figures of the sites' servers in the last two events.
        seconds: seconds of an iteration in the last rounds, by worker (group, number) and kind.
        totals: sums since the beginning: "steps" of all groups, seconds of all workers by kind, "crossing", "within".
    """

    def __init__(self, event: Event, now: float, slot: int):
        self.run, self.job = str(event["run"]), str(event.get("job", ""))
        self.user, self.client = str(event.get("user", "")), event.get("client")
        self.topology = str(event.get("topology", ""))
        self.state = "running"
        self.step, self.train_steps = int(event.get("step", 0)), int(event.get("train_steps", 0))
        self.begun, self.ended = now, None if event["event"] != "end" else now
        self.slot = slot
        self.metrics: defaultdict[tuple[str, str], Series] = defaultdict(Series)
        self.last_batches: defaultdict[str, Series] = defaultdict(Series)
        self.speed, self.crossing, self.within = Series(), Series(), Series()
        self.staleness: defaultdict[int, Series] = defaultdict(Series)
        self.sites: deque[tuple[float, Sequence[Sequence[float]]]] = deque(maxlen=2)
        self.seconds: dict[tuple[int, int], dict[str, float]] = {}
        self.addresses = {
            (group, number): address
            for group, addresses in enumerate(event.get("workers", ()))
            for number, address in enumerate(addresses)
        }
        self._rates: dict[int, tuple[float, float]] = {}  # bytes a second of each worker group in its last rounds
        self.version = 0
        self.totals = dict.fromkeys(("steps", *KINDS, "crossing", "within"), 0.0)

    def read_round(self, event: Event, now: float) -> None:
        """Record the event of a round."""
        self.version += 1
        self.step = event.get("step", self.step)
        for row in event.get("rows", ()):
            for name, value in row.items():
                if name not in NOT_METRICS:
                    self.metrics[row["phase"], name].add(row["step"], value)
        for name, value in event.get("metrics", {}).items():
            self.last_batches[name].add(self.step, value)
        if "samples_per_second" in event:
            self.speed.add(now, event["samples_per_second"])
        for group, updates, total, _ in event.get("staleness", ()):
            self.staleness[group].add(now, total / max(updates, 1))
        if servers := event.get("sites"):
            self.sites.append((now, servers))
        groups = event.get("groups", ())
        for group in groups:
            self._read_group(group)
        for group in groups:
            self._rates[group["group"]] = _rate(group, "crossing"), _rate(group, "within")
        if groups:
            self.crossing.add(now, sum(crossing for crossing, _ in self._rates.values()))
            self.within.add(now, sum(within for _, within in self._rates.values()))

    def _read_group(self, group: Event) -> None:
        steps = max(group["steps"], 1)
        for number, seconds in enumerate(zip(*(group[kind] for kind in KINDS), strict=True)):
            self.seconds[group["group"], number] = {
                kind: total / steps for kind, total in zip(KINDS, seconds, strict=True)
            }
        self.totals["steps"] += group["steps"]
        for kind in (*KINDS, "crossing", "within"):
            self.totals[kind] += sum(group[kind])

    def end(self, now: float, state: str, step: int | None = None) -> None:
        """Record how and when the run ended."""
        self.state, self.ended = state, now
        self.step = self.step if step is None else step


def _rate(group: Event, name: str) -> float:
    seconds = max(map(sum, zip(*(group[kind] for kind in KINDS), strict=True)))
    return sum(group[name]) / max(seconds, 1e-6)
