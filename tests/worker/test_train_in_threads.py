"""Worker groups in threads train without a cluster, to the bits of one on a cluster."""

from __future__ import annotations

import pytest
from distributed import Client

from dsinga.api import roots, train
from dsinga.job import Job
from dsinga.training import name_metrics
from dsinga.transport.endpoints import endpoint_names
from tests.support.small_job import assert_same, with_topology
from tests.support.train_in_threads import train_in_threads


def cut_by_features(job: Job) -> Job:
    layers = [layer.replace(partition_dim=1) if layer.name == "ip" else layer for layer in job.neuralnet.layer]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("servers", [1, 2])
def test_threads_give_the_bits_of_a_cluster(job: Job, threads: Client, workers: int, servers: int) -> None:
    job = cut_by_features(with_topology(job, workers, servers)).replace(train_steps=8, disp_freq=1)
    result = train(job, threads, progress=False)
    run = train_in_threads(job, roots(job, None))
    assert_same(run.params, result.params)
    losses = [step["loss"][0] / step["loss"][1] for step in (name_metrics(result.net, raw) for raw in run.metrics)]
    assert losses == list(result.history.phase("train")[:, "loss"])
    assert not [name for name in endpoint_names() if "-worker-" in name], "the run is closed"
