"""Finds the Dask workers that a run may use, by their hosts and resources, and checks that they suffice."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from distributed import Client

from dsinga.base.advice import option
from dsinga.base.errors import TooFewWorkers, UserError
from dsinga.cluster.dask.dask_workers import Workers, host
from dsinga.cluster.dask.placement import place
from dsinga.cluster.dask.worker_calls import run_on_workers
from dsinga.cutting.cluster_topology import Topology


class WorkerSelection(NamedTuple):
    """Which Dask workers a run may use, by resources and hosts.

    Attributes:
        resources: the amounts of Dask's worker resources that each of its workers needs, as in {"GPU": 1}.
        hosts: the hosts or Dask workers that it may use, by name or address; empty for all.
    """

    resources: Mapping[str, float] = {}
    hosts: Sequence[str] = ()

    @property
    def is_limited(self) -> bool:
        """Whether some Dask workers may be excluded."""
        return bool(self.resources or self.hosts)

    def __str__(self) -> str:
        """Return the text that qualifies "Dask workers" in messages, "" for all."""
        parts = ["with " + ", ".join(f"{name}={amount:g}" for name, amount in self.resources.items())]
        return " ".join((parts if self.resources else []) + ([f"on {', '.join(self.hosts)}"] if self.hosts else []))


ANYWHERE = WorkerSelection()


def usable_workers(client: Client, selection: WorkerSelection, workers: Workers) -> Workers:
    """Return the Dask workers that a run may use, with "nthreads" limited by its resources."""
    if not selection.is_limited:
        return workers
    check_selection(client, selection, workers)
    names = aliases(client, selection.hosts, workers)
    usable = {}
    for address, info in workers.items():
        if not names or any(name in worker_names(address, info) for group in names for name in group):
            counts = [
                int(info["resources"].get(name, 0) / amount + 1e-9) for name, amount in selection.resources.items()
            ]
            if min([info["nthreads"], *counts]) > 0:
                usable[address] = {**info, "nthreads": min([info["nthreads"], *counts])}
    return usable


def check_selection(client: Client, selection: WorkerSelection, workers: Workers) -> None:
    """Raise UserError for a host without Dask workers, and for a resource that none has enough of."""
    for name, group in zip(selection.hosts, aliases(client, selection.hosts, workers), strict=True):
        if not any(each in worker_names(address, info) for address, info in workers.items() for each in group):
            hosts = ", ".join(sorted({host(address) for address in workers})) or "none"
            there = f"the hosts of the cluster are: {hosts}"
            if hosts == "inproc":  # threads of this process
                cluster = option("scheduler", "ADDRESS", python="client=Client(ADDRESS)")
                there = f"all are in this process; for another host give a cluster: {cluster}"
            raise UserError(f"no Dask worker is on {name!r}; {there}")
    for name, amount in selection.resources.items():
        if not amount > 0:
            raise UserError(f"the resource {name!r} is {amount}; give the amount that each worker needs, as in 1")
        most = max((info["resources"].get(name, 0) for info in workers.values()), default=0)
        if most < amount:
            raise UserError(
                f"no Dask worker has the resource {name}={amount:g}"
                + (f", the most is {most:g}" if most else "")
                + f"; start some with `dask worker SCHEDULER --resources {name}={amount:g}`"
            )


def check_room(topology: Topology, workers: Workers, selection: WorkerSelection) -> None:
    """Raise TooFewWorkers unless ``workers``, which a run may use, suffice for it without other runs."""
    try:
        place(topology, workers)
    except TooFewWorkers as error:
        if not selection.is_limited:
            raise
        raise TooFewWorkers(f"{error} (only Dask workers {selection} count)") from error


def worker_names(address: str, info: Mapping[str, Any]) -> list[str]:
    """Return the names with which a user may select a Dask worker or its host."""
    return [address, str(info["host"]), str(info["name"])]


def aliases(client: Client, hosts: Sequence[str], workers: Workers) -> list[list[str]]:
    """Return the names of each of ``hosts``: itself, and its address in Dask."""
    names = [[name] for name in hosts]
    known = {name for address, info in workers.items() for name in worker_names(address, info)}
    for group in names:
        if group[0] not in known:
            with contextlib.suppress(OSError):
                group.append(socket.gethostbyname(group[0]))
    if all(known.intersection(group) for group in names):
        return names
    # A machine may know its own name where its cluster's name service does not.
    for address, own_name in run_on_workers(client, workers, socket.gethostname).items():
        for group in names:
            if group[0] in (own_name, own_name.split(".")[0]) and address in workers:
                group.append(str(workers[address]["host"]))
    return names
