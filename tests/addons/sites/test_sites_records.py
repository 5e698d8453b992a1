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
from dsinga.api import train
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
