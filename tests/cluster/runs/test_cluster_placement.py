"""Which Dask worker each partition and each server gets, and how many cores."""

from typing import Any

import pytest

from dsinga.cluster.dask.placement import place
from dsinga.cutting.cluster_topology import Topology
from tests.support.refusals import check_refusal, refusal


def dask_workers(*threads: int, inproc: bool = False) -> dict[str, dict[str, object]]:
    """Return the information of Dask workers with so many threads each, as the scheduler gives it."""
    kind = "inproc://10.0.0.1/7/" if inproc else "tcp://10.0.0.1:400"
    return {f"{kind}{number}": {"nthreads": count, "name": number} for number, count in enumerate(threads)}


def numbers(topology: Topology, *threads: int, inproc: bool = False) -> tuple[object, object]:
    """Return the Dask workers of the partitions and of the servers, group by group, by their numbers."""
    workers = dask_workers(*threads, inproc=inproc)
    placement, order = place(topology, workers), list(workers)
    partitions, servers = (
        [[order.index(address) for address in group] for group in groups]
        for groups in (placement.workers, placement.servers)
    )
    return partitions, servers


def test_the_cores_of_a_host_are_shared_by_its_partitions() -> None:
    assert place(Topology(1, 1), dask_workers(8)).threads == ((8,),)
    assert place(Topology(2, 1), dask_workers(4, 4)).threads == ((4, 4),)
    assert place(Topology(3, 1), dask_workers(2, 2)).threads == ((1, 1, 1),)
    assert place(Topology(2, 1), dask_workers(1, 1, 1, 1, inproc=True)).threads == ((2, 2),)
    assert place(Topology(1, 1, groups=2), dask_workers(2, 2)).threads == ((2,), (2,))


HYBRID, SANDBLASTER = Topology(2, 1, groups=4, server_groups=2), Topology(2, 2, separate=True)
# The threads of Dask workers, the numbers of those of the partitions, and of the servers, group by group.
PLACES: list[tuple[Topology, tuple[int, ...], list[list[int]], list[list[int]]]] = [
    (Topology(3, 2), (2, 2), [[0, 1, 0]], [[0, 1]]),  # all Dask workers before any gets two
    # Blocks of workers share a process, SINGA's nworkers_per_procs, as far as it has threads.
    (Topology(4, 1, workers_per_process=2), (2, 2), [[0, 0, 1, 1]], [[0]]),
    (Topology(4, 1, workers_per_process=2), (4, 1), [[0, 0, 1, 0]], [[0]]),
    (Topology(2, 1, groups=2, workers_per_process=2), (4, 4), [[0, 0], [1, 1]], [[0]]),
    # AllReduce has each server beside its worker.
    (Topology(4, 4, workers_per_process=2), (2, 2), [[0, 0, 1, 1]], [[0, 0, 1, 1]]),
    (Topology(4, 2, workers_per_process=2), (2, 2), [[0, 0, 1, 1]], [[0, 1]]),
    (Topology(4, 4, servers_per_process=2), (1, 1, 1, 1), [[0, 1, 2, 3]], [[0, 1, 2, 3]]),
    (Topology(4, 3, servers_per_process=2), (1, 1, 1, 1), [[0, 1, 2, 3]], [[0, 0, 1]]),
    # A server group lives in the processes of its worker groups.
    (Topology(1, 1, groups=3, server_groups=3), (1, 1, 1), [[0], [1], [2]], [[0], [1], [2]]),
    (HYBRID, (2, 2, 2, 2), [[0, 1], [2, 3], [0, 1], [2, 3]], [[0], [1]]),
    (HYBRID._replace(workers_per_process=2), (2, 2, 2, 2), [[0, 0], [1, 1], [2, 2], [3, 3]], [[0], [3]]),
    # Separate servers have processes of their own.
    (SANDBLASTER, (1, 1, 1, 1), [[0, 1]], [[2, 3]]),
    (SANDBLASTER._replace(servers_per_process=2), (1, 1, 1), [[0, 1]], [[2, 2]]),
    (Topology(1, 1, groups=2, server_groups=2, separate=True), (2, 1, 1), [[0], [0]], [[1], [2]]),
    (Topology(5, 1, threads=3), (1, 1, 1, 1), [[0, 0, 1, 1, 2]], [[0]]),
    (Topology(5, 1, threads=3), (1, 1), [[0, 0, 0, 1, 1]], [[0]]),
    (Topology(5, 1, threads=3), (2,), [[0, 0, 0, 0, 0]], [[0]]),
    (Topology(5, 1, groups=2, threads=8), (2, 1, 1), [[0, 0, 0, 1, 1], [2, 2, 2, 0, 0]], [[0]]),
]


@pytest.mark.parametrize(("topology", "threads", "partitions", "servers"), PLACES)
def test_partitions_and_servers_have_their_places(
    topology: Topology, threads: tuple[int, ...], partitions: list[list[int]], servers: list[list[int]]
) -> None:
    assert numbers(topology, *threads) == (partitions, servers)


TEAMS = [
    (Topology(8, 1, threads=8), (1, 1), [(0, 4), (4, 8)]),
    (Topology(8, 1, threads=8), (2,), [(0, 4), (4, 8)]),
    (Topology(8, 1, threads=1), (2,), [(0, 8)]),
    (Topology(8, 1, threads=8), (1, 1, 1), [(0, 2), (2, 3), (3, 4), (4, 6), (6, 8)]),
    (Topology(6, 1, threads=6), (1,), [(0, 6)]),
    (Topology(3, 1, threads=3), (4, 4), [(0, 1), (1, 2), (2, 3)]),
]


@pytest.mark.parametrize(("topology", "threads", "teams"), TEAMS)
def test_each_thread_has_a_team_for_each_node_of_its_blocks(
    topology: Topology, threads: tuple[int, ...], teams: list[tuple[int, int]]
) -> None:
    (found,) = place(topology, dask_workers(*threads)).teams
    assert [(team.start, team.stop) for team in found] == teams


def test_threads_of_one_process_cannot_be_separate() -> None:
    assert numbers(Topology(2, 1, separate=True), 1, 1, inproc=True) == ([[0, 1]], [[0]])


MISTAKES = [
    refusal(lambda: place(Topology(1, 1), {}), "has no workers", "start some with"),
    refusal(lambda: place(Topology(3, 1), dask_workers(1, 1)), "3 workers", "start"),
    refusal(lambda: place(Topology(2, 1, groups=2), dask_workers(1, 1)), "nworker_groups", "workers=N or cluster"),
    refusal(lambda: place(Topology(1, 2, separate=True), dask_workers(4, 4)), "2 servers", "has 2 processes"),
    refusal(lambda: place(Topology(2, 2, separate=True), dask_workers(1, 1, 1)), "1 worker", "of the servers"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
