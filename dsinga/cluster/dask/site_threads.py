"""Chooses threads of Dask workers for worker groups that are sites: of a host each, or of names that a job gives."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class Sites(NamedTuple):
    """The sites that a job needs: ``groups`` of ``size`` threads each.

    ``patterns`` are those of the names of the Dask workers of each site, such as "10.0.1.*"; empty for a host each.
    """

    groups: int
    size: int
    patterns: Sequence[str] = ()


class Thread(NamedTuple):
    """A thread of a Dask worker: its address, its host, and the names by which a pattern finds it."""

    address: str
    host: str
    names: Collection[str]


def worker_names(address: str, info: Mapping[str, Any]) -> list[str]:
    """Return the names by which patterns find a Dask worker: its address, host and name, and those of its resources."""
    if "names" in info:
        return [address, *info["names"]]
    return [address, *(str(info[key]) for key in ("host", "name") if key in info), *info.get("resources", {})]


def matches(names: Collection[str], pattern: str) -> bool:
    """Whether one of the names of a Dask worker fits the pattern of a site."""
    return any(fnmatchcase(name, pattern) for name in names)


def choose_sites(threads: Sequence[Thread], sites: Sites, crowded: bool = False) -> list[list[str]]:
    """Return the addresses of the threads of each site, in the order of ``threads``; fewer sites where room lacks.

    Each host gets a site, then each one that has room the second. Of sites with patterns those before the first one
    that lacks threads are returned. If ``crowded``, threads may be in several sites, and any Dask worker takes the
    place of one that is not there.
    """
    if not threads:
        return []
    if sites.patterns:
        return _matching(threads, sites, crowded)
    hosts: dict[str, list[str]] = {}
    for thread in threads:
        hosts.setdefault(thread.host, []).append(thread.address)
    if crowded:
        needed = sites.groups * sites.size
        hosts = {host: list(itertools.islice(itertools.cycle(on_host), needed)) for host, on_host in hosts.items()}
    chunks = [
        (number, at, on_host[number * sites.size : (number + 1) * sites.size])
        for at, on_host in enumerate(hosts.values())
        for number in range(len(on_host) // sites.size)
    ]
    return [chunk for _, _, chunk in sorted(chunks)[: sites.groups]]


def _matching(threads: Sequence[Thread], sites: Sites, crowded: bool) -> list[list[str]]:
    left, chosen = list(threads), []
    for pattern in sites.patterns:
        found = [thread for thread in left if matches(thread.names, pattern)]
        if crowded:
            found = list(itertools.islice(itertools.cycle(found or left), sites.size))
        if len(found) < sites.size:
            break
        chosen.append([thread.address for thread in found[: sites.size]])
        if not crowded:
            taken = {id(thread) for thread in found[: sites.size]}
            left = [thread for thread in left if id(thread) not in taken]
    return chosen
