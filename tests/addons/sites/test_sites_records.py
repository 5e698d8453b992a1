"""Sites that train on stores of their own, of other lengths and classes: federated averaging."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import UserError
from dsinga.addons.sites.mean_conf import MeanConf
from dsinga.api import train
from dsinga.cluster.dask.placement import place, place_lost
from dsinga.cutting.cluster_topology import Topology
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job, Phase
from dsinga.reading.batch_reader import WorkerBatches
from dsinga.reading.checked_job import CheckedJob
from tests.support.refusals import refused
from tests.support.small_job import linear

SIZES = {"a": 300, "b": 100}  # records of each site
LABELS = {"a": (0, 1), "b": (1, 3)}  # the range of their classes, without the end: each site has others
CENTRES = np.array([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0]], np.float32)


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, str]:
    random, paths = np.random.default_rng(0), {}
    for name, count in SIZES.items():
        labels = random.integers(*LABELS[name], count)
        data = CENTRES[labels] + random.normal(0, 1, (count, 4)).astype(np.float32)
        paths[name] = str(tmp_path / f"{name}.zarr")
        write_store(paths[name], [(data, labels)])
    return paths


def fedavg(period: int, **mean: Any) -> ClusterConf:
    step = {"type": "kSGD", "learning_rate": {"type": "kFixed", "base_lr": 1}}
    conf = {"updater": step, "weight": list(SIZES.values())} | mean
    return ClusterConf(nworker_groups=2, nserver_groups=2, sync_freq=period, sync_method="kMean", mean_conf=conf)


def of_sites(stores: dict[str, str], cluster: ClusterConf | None, steps: int) -> Job:
    job = linear(f"=train_steps={steps}").replace(cluster=cluster)
    job.neuralnet.layer[0].store_conf.site_path = list(stores.values())
    return job


@pytest.mark.process
def test_a_round_is_the_mean_of_what_each_site_trains_alone(stores: dict[str, str], processes: Client) -> None:
    """Algorithm 1 of McMahan et al. (1602.05629) for one round: the weights are the numbers of records."""
    result = train(of_sites(stores, fedavg(12), 12), processes, progress=False)
    alone = [train(linear(f"path={path}", "=train_steps=12"), progress=False).params for path in stores.values()]
    for name, value in result.params.items():
        expected = np.average([params[name] for params in alone], axis=0, weights=list(SIZES.values()))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_sites_learn_the_classes_of_all(stores: dict[str, str], threads: Client) -> None:
    result = train(of_sites(stores, fedavg(5), 150), threads, progress=False)

    def accuracy(params: dict[str, np.ndarray], name: str) -> float:
        test = linear(f"path={stores[name]}", f"batchsize={SIZES[name]}")
        return dsinga.evaluate(test, params, phase="test")["accuracy"]

    alone = train(linear(f"path={stores['a']}", "=train_steps=150"), progress=False)
    assert accuracy(alone.params, "b") < 0.5
    assert min(accuracy(result.params, name) for name in stores) > 0.9


def test_no_process_opens_the_store_of_another_site(stores: dict[str, str]) -> None:
    reader = pickle.loads(pickle.dumps(CheckedJob(of_sites(stores, fedavg(5), 10)).reader(Phase.kTrain, 1, 2)))
    shutil.rmtree(stores["a"])
    records = reader.of_group(1)
    assert len(records) == SIZES["b"]
    read = WorkerBatches(records, {"data": records.rows(0)}, 1)
    epoch = np.concatenate([read(step)["data"].labels for step in range(5)])
    assert sorted(epoch) == sorted(records.stores["data"].read_labels(range(100)))
    refused(lambda: reader.of_group(0), r"the records of site 0: .*a\.zarr")


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (np.zeros((40, 5), np.float32), np.zeros(40, int), r"has shape \(5,\), and \(4,\) in the store by which"),
        (np.zeros((40, 4), np.float32), np.full(40, 3), "label"),
        (np.zeros((40, 4), np.float32), None, "whose records have none"),
    ],
)
def test_records_of_another_kind_at_a_site_are_refused(
    stores: dict[str, str], threads: Client, data: np.ndarray, labels: np.ndarray | None, message: str
) -> None:
    write_store(stores["b"], [(data, labels)], overwrite=True)
    refused(lambda: train(of_sites(stores, fedavg(5), 10), threads, progress=False), f"records of site 1: .*{message}")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"classes": ["dog", "cat", "cow"]}, "label names .'dog', 'cat', 'cow'., and .'cat', 'dog', 'cow'. in"),
        ({"vocabulary": ["one", "two"]}, "has other words than the store .*, with the same vocabulary"),
    ],
)
def test_sites_name_classes_and_words_in_one_order(
    stores: dict[str, str], threads: Client, names: dict[str, Any], message: str
) -> None:
    """A site without names of classes is taken."""
    here = {"classes": ["cat", "dog", "cow"]} if "classes" in names else {"vocabulary": ["two", "one"]}
    for path, given in zip(stores.values(), (here, names), strict=True):
        write_store(path, [(np.zeros((40, 4), np.float32), np.arange(40) % 3)], overwrite=True, **given)
    refused(lambda: train(of_sites(stores, fedavg(5), 10), threads, progress=False), f"records of site 1: .*{message}")
    if "classes" in names:
        write_store(stores["b"], [(np.zeros((40, 4), np.float32), np.arange(40) % 3)], overwrite=True)
        train(of_sites(stores, fedavg(5), 10), threads, progress=False)


def test_each_site_needs_a_store(stores: dict[str, str]) -> None:
    for groups, remedy in {1: "1 worker group; use path, or as many", 3: "3 worker groups; give one for each"}.items():
        with pytest.raises(UserError, match=f"site_path names 2 stores, but the job has {remedy}"):
            train(of_sites(stores, ClusterConf(nworker_groups=groups), 10), progress=False)


# Which Dask workers each site gets.
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


def test_blocks_of_a_site_that_goes_on_stay_in_their_teams() -> None:
    first, last = "tcp://a:1", "tcp://b:1"
    workers = {first: {"nthreads": 2, "host": "a"}, last: {"nthreads": 2, "host": "b"}}
    topology = Topology(4, 1, groups=2, server_groups=2, mean=MeanConf(), threads=2)
    placement = place(topology, workers)
    assert placement.workers == ((first,) * 4, (last,) * 4)
    moved = place_lost(topology, placement, {first: workers[first]})
    assert moved.workers == ((first,) * 4,) * 2
    assert moved.teams == (placement.teams[0], (range(4),))


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
