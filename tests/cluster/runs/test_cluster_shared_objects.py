"""What a run shares: objects that are sent once, and params that do not change."""

import contextlib
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import dask.config
import numpy as np
import pytest
from distributed import Client, worker_client

from dsinga import RunError, train
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.cluster import available_workers, connect
from dsinga.cluster.dask.worker_memory import Packed, share, unpacked
from dsinga.job import ClusterConf, Job
from dsinga.job.reader import with_fields
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.small_job import with_topology
from tests.support.user_layers import Identity, with_user_layer


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of seven Dask workers; the scheduler would try for an hour to reach one that has gone."""
    with dask.config.set({"distributed.comm.timeouts.connect": "1h"}), connect(workers=7) as client:
        yield client


def holders(client: Client, key: str) -> set[str]:
    """The addresses of the Dask workers that have a key in memory."""
    held = client.run(lambda dask_worker: key in dask_worker.data)
    return {address for address, has_key in held.items() if has_key}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_all_workers_and_the_scheduler_know_of_it_until_it_is_released(client: Client, count: int) -> None:
    addresses = list(available_workers(client))[:count]
    future = share(client, {"count": count}, [*addresses, addresses[0]])
    key = future.key
    assert holders(client, key) == set(client.who_has([future])[key]) == set(addresses)
    assert future.result(timeout=60) == {"count": count}
    del future
    wait_until(lambda: not holders(client, key))


def share_in_task(addresses: list[str], scheduler: str | None = None) -> set[str]:
    """Task: share an object in its own cluster, or in that of another scheduler; return which workers have it."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(scheduler, set_as_default=False) if scheduler else worker_client())
        future = share(client, [1], addresses)  # which is held until it was looked at
        return holders(client, future.key)


def test_a_task_shares_with_other_workers_than_its_own(client: Client) -> None:
    own, *others = list(available_workers(client))[:4]
    assert client.submit(share_in_task, others, workers=[own]).result(60) == set(others)


def test_a_task_shares_in_another_cluster(client: Client) -> None:
    with connect(workers=1) as second:
        addresses = list(available_workers(second))
        future = client.submit(share_in_task, addresses, second.scheduler.address)
        assert future.result(60) == set(addresses)


def test_a_worker_that_has_gone_keeps_nobody_else_from_sharing(client: Client) -> None:
    addresses = list(available_workers(client))
    gone = addresses[-1]
    client.retire_workers([gone])
    refused(lambda: share(client, [1], [gone]), f"the Dask worker {gone} was lost", error=RunError)
    with pytest.raises(RunError, match=f"the Dask worker {gone} was lost"):
        share(client, [1], sorted(addresses, key=lambda address: address == gone))
    assert share(client, [2], addresses[:-1]).result(timeout=60) == [2]


loaders: list[str] = []


@register("layer", "Noting")
class NotingLayer(Identity):
    """Notes the thread in which it is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaders.append(threading.current_thread().name)
        self.__dict__.update(state)


def test_the_layers_of_a_job_are_loaded_by_threads_of_tasks_only(job: Job) -> None:
    job = with_user_layer(job, "Noting")
    with connect(workers=2) as client:
        loaders.clear()
        assert train(with_topology(job, 2, 2), client, progress=False).step == 2
    assert sum("Dask-Default-Threads" in name for name in loaders) == 1, loaders
    assert "IO loop" not in loaders, "where the scheduler and the workers take messages"


def test_an_object_is_itself_or_packed() -> None:
    value = {"a": [1, 2]}
    assert unpacked(value) is value
    assert unpacked(Packed(value)) == value


def test_a_shared_object_is_loaded_once_for_as_long_as_it_is_used(job: Job) -> None:
    packed = pickle.loads(pickle.dumps(Packed(job)))
    first = packed.share()
    assert packed.share() is first
    assert packed.unpack() is not first
    assert pickle.loads(pickle.dumps(packed)).share().name == job.name
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert packed.share().name == job.name


def test_copies_that_arrived_at_several_dask_workers_of_a_process_are_unpacked_once() -> None:
    pickled = pickle.dumps(Packed(Sizes([3, 4])))
    first, second = (pickle.loads(pickled).share() for _ in range(2))
    assert first is second
    assert pickle.loads(pickle.dumps(Packed(first))).share() is not first


class Sizes(list):  # a list has no weak references
    """Something large."""


def frozen(job: Job, *names: str, **fields: Any) -> Job:
    """Return the job without momentum, for a few steps, with these fields in the params of these names."""
    layers = [
        layer.replace(param=[param.replace(**fields) if param.name in names else param for param in layer.param])
        for layer in job.net.layer
    ]
    return job.replace(train_steps=8, disp_freq=4, test_freq=0, neuralnet=job.net.replace(layer=layers))


@pytest.mark.parametrize(("dim", "update"), [(0, "kServer"), (1, "kWorker")])
def test_they_keep_their_values(job: Job, threads: Client, dim: int, update: str) -> None:
    static = frozen(job, "w1", "b1", "w2", static=True)
    static = static.replace(neuralnet=static.net.replace(partition_dim=dim))
    cluster = ClusterConf(nworkers_per_group=2, nservers_per_group=2, update=update)
    result = train(static.replace(cluster=cluster), client=threads, progress=False)
    alone = train(static, workers=1, progress=False)
    rest = train(frozen(job, "w1", "b1", "w2", lr_scale=0, wd_scale=0), workers=1, progress=False)
    for name in ("w1", "b1", "w2"):
        assert result.params[name].tobytes() == alone.params[name].tobytes() == rest.params[name].tobytes()
    for name in ("b2", "norm_scale"):
        np.testing.assert_allclose(result.params[name], rest.params[name], rtol=1e-4, atol=1e-6)
        assert alone.params[name].tobytes() == rest.params[name].tobytes()


def test_mistakes_are_named_with_their_remedies(job: Job) -> None:
    groups = frozen(job, "w1", static=True).replace(cluster=ClusterConf(nworker_groups=2))
    refused(lambda: train(groups, progress=False), "lr_scale", "0, or one")
    with pytest.raises(UserError, match="use_global_stats keeps.*there are 2"):
        train(with_global_stats(job).replace(cluster=ClusterConf(nworker_groups=2)), progress=False)


def with_global_stats(job: Job) -> Job:
    """Return the job, for a few steps, whose batch normalisation keeps its running statistics."""
    fields = {"neuralnet.layer[norm].bm_conf.use_global_stats": "true", "train_steps": 8, "disp_freq": 4}
    return with_fields(job, fields)


@pytest.mark.parametrize(("dim", "update"), [(1, "kServer"), (0, "kWorker")])
def test_statistics_of_a_frozen_batch_normalisation_do_not_drift(
    job: Job, threads: Client, dim: int, update: str
) -> None:
    norm = with_global_stats(job)
    norm = norm.replace(neuralnet=norm.net.replace(partition_dim=dim))
    start = {"norm_mean": np.full(8, 0.3, np.float32), "norm_variance": np.full(8, 1.7, np.float32)}
    cluster = ClusterConf(nworkers_per_group=3, update=update)  # shares of 34, 33 and 33 records, which do not add up
    result = train(norm.replace(cluster=cluster), client=threads, progress=False, params=start)
    alone = train(norm, workers=1, progress=False, params=start)
    for name, value in start.items():
        np.testing.assert_array_equal(result.params[name], value)
    assert not np.array_equal(alone.params["norm_scale"], np.ones(8))
    for name, value in alone.params.items():
        np.testing.assert_allclose(result.params[name], value, rtol=1e-4, atol=1e-5)


FEATURES = {"partition_dim": 1}


@pytest.fixture
def settings_job(job: Job) -> Job:
    """The small job, with settings for its second weight, and a bias that stays as it is."""
    updater = job.updater.replace(
        momentum=0.0,
        momentum_conf={"saturation_step": 8},
        param_settings=[
            {"match": "b1", "base_lr": 0},
            {"match": "w?", "base_lr": 0.003, "clip_low": -0.01, "clip_high": 0.02},
        ],
    )
    return job.replace(updater=updater, train_steps=12, disp_freq=0)


@pytest.mark.parametrize(
    ("topology", "net"),
    [({"nservers_per_group": 2}, {}), ({"nservers_per_group": 2}, FEATURES), ({"update": "kWorker"}, {})],
    ids=["rows", "features", "own updates"],
)
def test_params_are_those_of_one_worker(
    settings_job: Job, threads: Client, topology: dict[str, Any], net: dict[str, Any]
) -> None:
    one = train(settings_job, client=threads, progress=False).params
    cut = settings_job.replace(
        cluster=ClusterConf(nworkers_per_group=2, **topology), neuralnet=settings_job.net.replace(**net)
    )
    two = train(cut, client=threads, progress=False).params
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert not one["b1"].any()  # a rate of 0
    assert one["b2"].any()
