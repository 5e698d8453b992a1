"""The scheduler passes on jobs that it does not load."""

from __future__ import annotations

import pickle
import threading
import weakref
from typing import Any

from distributed import Client, LocalCluster

from dsinga import train
from dsinga.cluster.dask.shared_objects import Packed, unpacked
from dsinga.job import Job, LayerConf
from dsinga.layers import Layer, Output
from dsinga.registry import register
from tests.support.small_job import with_topology

loaders: list[str] = []


class Noting:
    """Notes the thread in which an object is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaders.append(threading.current_thread().name)
        self.__dict__.update(state)


@register("layer", "Noting")
class NotingLayer(Noting, Layer):
    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0])

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        return (grad,), ()


def test_the_layers_of_a_job_are_loaded_by_threads_of_tasks_only(job: Job) -> None:
    job.neuralnet.layer.insert(6, LayerConf(name="own", user_type="Noting", srclayers="pool"))
    job.neuralnet.layer[7].srclayers = ["own"]
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        loaders.clear()
        assert train(with_topology(job.replace(train_steps=2), 2, 2), client, progress=False).step == 2
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
