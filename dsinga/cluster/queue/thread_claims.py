"""Assigns threads of Dask workers to runs, and queues the runs that must wait, without calling Dask.

Requests and records are plain dicts, because they travel between clients and schedulers of different versions. A
request has these keys:

- "run": its name
- "job"
- "client": the Dask client's id
- "user"
- "threads": the most that it uses, one a worker
- "least": the fewest threads to begin with; by default all
- "threads_per_process": so many workers fill a Dask worker before the next one gets some
- "server_processes": the number of whole Dask workers for separate servers
- "resources": Dask's resources of each worker, by name
- "hosts": lists of names, for each host or Dask worker that it may use; empty for all
- "sites", if worker groups are sites: the items of :class:`dsinga.cluster.dask.placement.Sites`

Its record also has

- "state": "waiting" or "running"
- "granted": threads by the Dask worker's address
- "apart_on": the addresses of the separate servers
- "since": when the state began, in seconds since the epoch
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dsinga.cluster.dask.placement import Sites, Thread, choose_sites

# A Dask worker: {"threads": count, "busy": its tasks that belong to no run, "host": name, "resources": {name: amount},
# "names": [names that a request may use]}.
Worker = Mapping[str, Any]
Record = dict[str, Any]


class Usage:
    """The threads and amounts of resources of one Dask worker that are in use."""

    def __init__(self) -> None:
        self.threads = 0
        self.resources: dict[str, float] = {}

    def add(self, threads: int, resources: Mapping[str, float]) -> None:
        """Count threads as used, and the resources for each."""
        self.threads += threads
        for name, amount in resources.items():
            self.resources[name] = self.resources.get(name, 0) + threads * amount


def may_use(request: Mapping[str, Any], worker: Worker) -> bool:
    """Whether a request may use a Dask worker: its hosts include the worker's, or it names none."""
    return not request["hosts"] or any(name in worker["names"] for names in request["hosts"] for name in names)


def free_threads(request: Mapping[str, Any], worker: Worker, usage: Usage) -> int:
    """Return how many threads of a Dask worker a request could have, each with the request's resources."""
    counts = [worker["threads"] - usage.threads]
    for name, amount in request["resources"].items():
        if amount > 0:
            left = worker["resources"].get(name, 0) - usage.resources.get(name, 0)
            counts.append(int(left / amount + 1e-9))
    return max(0, min(counts))


def assign(
    request: Mapping[str, Any], workers: Mapping[str, Worker], held: Mapping[str, Usage]
) -> tuple[dict[str, int], list[str]] | None:
    """Choose a request's threads, by Dask worker, and the Dask workers of its separate servers.

    None if too few are free. Dask workers with fewer runs and other tasks come first, then the order of ``workers``
    counts.
    """
    allowed = {address: worker for address, worker in workers.items() if may_use(request, worker)}
    taken = {address: held.get(address, Usage()) for address in allowed}
    free = {address: free_threads(request, worker, taken[address]) for address, worker in allowed.items()}
    # Servers need no resources, so they get the Dask workers with the least room for workers, the last ones first.
    unused = sorted((address for address in allowed if not taken[address].threads), key=lambda each: -free[each])
    if len(unused) < request["server_processes"]:
        return None
    apart = unused[len(unused) - request["server_processes"] :]
    block = request["threads_per_process"]
    order = {address: number for number, address in enumerate(free) if address not in apart}
    threads = [
        ((taken[address].threads + allowed[address].get("busy", 0) + thread) // block, number, address)
        for address, number in order.items()
        for thread in range(free[address])
    ]
    if len(threads) < request.get("least", request["threads"]):
        return None
    addresses = [address for _, _, address in sorted(threads)]
    if sites := request.get("sites"):
        named = [Thread(a, allowed[a]["host"], [*allowed[a]["names"], *allowed[a]["resources"]]) for a in addresses]
        chosen = choose_sites(named, Sites(*sites))
        if len(chosen) == Sites(*sites).groups:
            addresses = [address for site in chosen for address in site]
        elif Sites(*sites).patterns:
            return None
    granted: dict[str, int] = {}
    for address in addresses[: request["threads"]]:
        granted[address] = granted.get(address, 0) + 1
    granted = {address: granted[address] for address in workers if address in granted}
    return granted | {address: allowed[address]["threads"] for address in apart}, apart


class ThreadClaims:
    """Keeps which threads of Dask workers runs hold, and which runs wait for some.

    First come, first served: to later runs, a waiting run counts as if it held everything that it could use. So small
    runs do not starve a large one. A run that is too large for the whole present cluster holds back no other.

    Attributes:
        workers: the Dask workers by address, in the order in which runs get them.
    """

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.runs: dict[str, Record] = {}

    def set_workers(self, workers: Mapping[str, Worker]) -> None:
        """Replace the Dask workers; a run keeps no thread on one that is gone."""
        self.workers = dict(workers)
        for record in self.runs.values():
            record["granted"] = {a: count for a, count in record["granted"].items() if a in workers}

    def add(self, request: Mapping[str, Any], now: float) -> None:
        """Put a request at the end of the queue."""
        record = {**request, "state": "waiting", "granted": {}, "apart_on": [], "since": now}
        self.runs.setdefault(request["run"], record)

    def remove(self, names: Iterable[str]) -> None:
        """Give back the threads of runs, or their places in the queue."""
        for name in list(names):
            self.runs.pop(name, None)

    def keep(self, name: str, granted: Mapping[str, int]) -> None:
        """Give back all threads of a run except ``granted``."""
        record = self.runs[name]
        counts = {a: min(count, granted.get(a, 0)) for a, count in record["granted"].items()}
        record["granted"] = {a: count for a, count in counts.items() if count}
        record["apart_on"] = [address for address in record["apart_on"] if address in record["granted"]]

    def replace(self, name: str, without: Collection[str]) -> None:
        """Exchange a running run's threads for the offered ones (:meth:`offer`)."""
        record = self.runs[name]
        record["granted"], record["apart_on"] = self.offer(name, without)

    def offer(self, name: str, without: Collection[str]) -> tuple[dict[str, int], list[str]]:
        """Return the threads that a run could have instead of its own: all it needs, or all free ones.

        Dask workers in ``without`` are not used.
        """
        record, held = self.runs[name], self.held(without=name)
        workers = {address: worker for address, worker in self.workers.items() if address not in without}
        assigned = assign(record, workers, held)
        if assigned is None:
            free = {
                address: free_threads(record, worker, held.get(address, Usage()))
                for address, worker in workers.items()
                if may_use(record, worker)
            }
            assigned = {address: count for address, count in free.items() if count}, []
        return assigned

    def advance(self, now: float) -> list[str]:
        """Start all runs that are next in turn and have free threads; return their names."""
        held = self.held()
        begun = []
        for name, record in self.runs.items():
            if record["granted"]:
                continue
            is_waiting = record["state"] == "waiting"
            assigned = assign(record, self.workers, held) if is_waiting else None
            if assigned is not None:
                granted, apart = assigned
                record.update(state="running", granted=granted, apart_on=apart, since=now)
                _take(held, record)
                begun.append(name)
            elif self.fits(record) or not is_waiting:  # one that has begun takes threads by :meth:`replace`
                for address, worker in self.workers.items():
                    if may_use(record, worker):
                        slots = (
                            worker["threads"] if record["server_processes"] else free_threads(record, worker, Usage())
                        )
                        held.setdefault(address, Usage()).add(slots, record["resources"])
        return begun

    def held(self, without: str = "") -> dict[str, Usage]:
        """Return the threads and resources that all runs but ``without`` hold, by Dask worker."""
        held: dict[str, Usage] = {}
        for name, record in self.runs.items():
            if name != without:
                _take(held, record)
        return held

    def fits(self, request: Mapping[str, Any]) -> bool:
        """Whether the present Dask workers suffice for a request if no other run holds any."""
        return assign(request, self.workers, {}) is not None

    def room(self, request: Mapping[str, Any]) -> tuple[int, int]:
        """Return how many threads, on how many Dask workers, a request could have without other runs."""
        counts = [
            free_threads(request, worker, Usage()) for worker in self.workers.values() if may_use(request, worker)
        ]
        return sum(counts), sum(count > 0 for count in counts)

    def unclaimed(self, name: str) -> dict[str, int]:
        """Return the threads of each host that no run but ``name`` holds."""
        held = self.held(without=name)
        threads: dict[str, int] = {}
        for address, worker in self.workers.items():
            taken = held[address].threads if address in held else 0
            threads[worker["host"]] = threads.get(worker["host"], 0) + worker["threads"] - taken
        return threads

    def holders(self, name: str) -> list[Record]:
        """Return the records of runs that hold threads which a waiting run may use."""
        usable = {address for address, worker in self.workers.items() if may_use(self.runs[name], worker)}
        return [record for other, record in self.runs.items() if other != name and usable & record["granted"].keys()]

    def ahead(self, name: str) -> list[Record]:
        """Return the records of the runs that wait longer than ``name``."""
        names = list(self.runs)
        earlier = (self.runs[run] for run in names[: names.index(name)])
        return [record for record in earlier if record["state"] == "waiting"]


def _take(held: dict[str, Usage], record: Record) -> None:
    for address, threads in record["granted"].items():
        resources = {} if address in record["apart_on"] else record["resources"]
        held.setdefault(address, Usage()).add(threads, resources)
