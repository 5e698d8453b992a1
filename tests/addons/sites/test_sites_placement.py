"""Which Dask workers each site gets."""

import pytest

from dsinga.addons.sites.mean_conf import MeanConf
from dsinga.cluster.dask.placement import place, place_lost
from dsinga.cutting.cluster_topology import Topology
from tests.support.refusals import refused

HOSTS = {"a": [1, 1, 1], "b": [2, 1], "c": [1]}


@pytest.mark.parametrize(
    ("groups", "workers", "placed"),
    [
        (2, 2, ["a0 a1", "b0 b1"]),
        (3, 1, ["a0", "b0", "c0"]),
        (2, 3, ["a0 a1 a2", "b0 b1 b0"]),
        (5, 1, ["a0", "b0", "c0", "a1", "b1"]),
        (3, 2, ["a0 a1", "a2 b0", "b1 b0"]),  # the hosts have not room for three pairs
    ],
)
def test_groups_that_average_have_a_host_each(groups: int, workers: int, placed: list[str]) -> None:
    cluster = {
        f"tcp://{name}:{number}": {"nthreads": threads}
        for number in range(3)  # the scheduler names Dask workers in the order in which they have come
        for name, counts in HOSTS.items()
        for threads in counts[number : number + 1]
    }
    topology = Topology(workers, 1, groups=groups, server_groups=groups, mean=MeanConf())
    placement = place(topology, cluster)
    names = [" ".join(address[6:].replace(":", "") for address in group) for group in placement.workers]
    assert names == placed
    assert all(place(topology, cluster, crowded=True).workers)
    lost = placement.workers[0][0]
    left = {address: info for address, info in cluster.items() if address != lost}
    (first, *_), *_ = place_lost(topology, placement, left).workers
    assert first[6] == lost[6], "what was lost comes back on the host of its group"


def test_sites_are_the_dask_workers_that_a_job_names() -> None:
    cluster = {
        f"tcp://10.0.{net}.{number}:1": {
            "nthreads": 2,
            "host": f"10.0.{net}.{number}",
            "name": f"{net}{number}",
            **more,
        }
        for net in range(2)
        for number in range(2)
        for more in [{"resources": {"lab": 1.0}} if net and number else {}]
    }

    def placed(*site: str, **options: bool) -> list[str]:
        topology = Topology(2, 1, groups=2, server_groups=2, mean=MeanConf(site=list(site)))
        groups = place(topology, cluster, **options).workers
        return [" ".join(address[11:14] for address in group) for group in groups]

    assert placed("10.0.1.*", "10.0.0.*") == ["1.0 1.1", "0.0 0.1"]
    assert placed("lab", "00") == ["1.1 1.1", "0.0 0.0"]
    assert placed("*", "*") == ["0.0 0.1", "1.0 1.1"]
    refused(lambda: placed("10.0.0.*", "01"), "'01'", "name, addr")
    assert placed("gone", "lab", crowded=True) == ["0.0 0.1", "1.1 1.1"], "others take the place of a lost site"
