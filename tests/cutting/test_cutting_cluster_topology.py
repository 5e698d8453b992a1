"""The topology of a job: groups, links between server groups, names of frameworks."""

import pytest

from dsinga.cutting.cluster_topology import Topology, sync_edges, topology
from dsinga.job import ClusterConf, Job, SyncEdgeConf, SyncTopology


def asked(groups: int, server_groups: int, workers: int, servers: int, separate: bool = False) -> Topology:
    """Return a topology by the five figures that SINGA's documents name a framework with."""
    names = ("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group", "server_worker_separate")
    conf = ClusterConf(**dict(zip(names, (groups, server_groups, workers, servers, separate), strict=True)))
    return topology(Job(cluster=conf), 1, 1)


SYNC, EVERY = "synchronised along", " every update"


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ((1, 1, 1, 1, False), "1 worker, 1 server"),
        ((1, 1, 3, 2, True), "Sandblaster: 3 workers, 2 servers in processes of their own"),
        ((1, 1, 3, 3, False), "AllReduce: 3 workers, 3 servers"),
        ((2, 1, 2, 2, True), "Downpour: 2 groups of 2 workers, 1 group of 2 servers in processes of their own"),
        (
            (3, 3, 1, 1, False),
            f"distributed Hogwild: 3 groups of 1 worker, 3 groups of 1 server, {SYNC} 0-1, 0-2, 1-2{EVERY}",
        ),
        ((4, 2, 2, 2, False), f"hybrid: 4 groups of 2 workers, 2 groups of 2 servers, {SYNC} 0-1{EVERY}"),
    ],
)
def test_singas_figures_name_the_frameworks(figures: tuple[int, int, int, int, bool], words: str) -> None:
    assert asked(*figures).describe() == words


def test_bound_and_warm_up_are_described_for_several_groups() -> None:
    conf = ClusterConf(nworker_groups=2, staleness=3)
    description = topology(Job(cluster=conf, warmup_steps=100), 1, 1).describe()
    assert description == (
        "Downpour: 2 groups of 1 worker, 1 group of 1 server, at most 3 steps apart, after 100 steps of group 0 alone"
    )
    alone = conf.replace(nworker_groups=1)
    assert topology(Job(cluster=alone, warmup_steps=100), 1, 1).describe() == "1 worker, 1 server"


@pytest.mark.parametrize(
    ("groups", "kind", "edges"),
    [
        (1, SyncTopology.kAllToAll, ()),
        (4, SyncTopology.kAllToAll, ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))),
        (1, SyncTopology.kRing, ()),
        (2, SyncTopology.kRing, ((0, 1),)),
        (4, SyncTopology.kRing, ((0, 1), (0, 3), (1, 2), (2, 3))),
        (1, SyncTopology.kStar, ()),
        (4, SyncTopology.kStar, ((0, 1), (0, 2), (0, 3))),
    ],
)
def test_every_pair_of_linked_groups_appears_once(groups: int, kind: SyncTopology, edges: object) -> None:
    assert sync_edges(ClusterConf(nserver_groups=groups, sync_topology=kind)) == edges


def test_sync_edges_replace_the_sync_topology() -> None:
    edges = [SyncEdgeConf(group=pair) for pair in ([2, 1], [0, 1], [1, 2])]
    assert sync_edges(ClusterConf(nserver_groups=3, sync_edge=edges)) == ((0, 1), (1, 2))


def test_a_server_group_serves_consecutive_worker_groups() -> None:
    shape = asked(6, 3, 1, 1)
    assert [shape.server_group(group) for group in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [list(shape.worker_groups(server_group)) for server_group in range(3)] == [[0, 1], [2, 3], [4, 5]]
