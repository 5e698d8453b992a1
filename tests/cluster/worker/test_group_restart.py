"""Steps of a worker group whose reports were lost are computed again, and change nothing."""

import numpy as np
import pytest

from dsinga.api import roots
from dsinga.cutting.cluster_topology import topology
from dsinga.job import ClusterConf, Job
from tests.support.train_in_threads import create_servers, create_workers, prepare, running, train


@pytest.mark.parametrize("clip_global_norm", [0.0, 0.1])
def test_steps_whose_reports_were_lost_are_computed_again_without_a_change(job: Job, clip_global_norm: float) -> None:
    job.updater.clip_global_norm = clip_global_norm
    shape = ClusterConf(nworker_groups=2, nworkers_per_group=2, nservers_per_group=2)
    job = job.replace(cluster=shape, train_steps=12)
    config, values = prepare(job, topology(job, 4, 1), roots(job, None))
    shards = create_servers(config, values)
    with running(config) as workers:
        workers += create_workers(config, values, group=1)
        assert [len(report.metrics) for report in train(workers, 0, 5)] == [5, 5]
        step = max(shard.restart(1, 1) for shard in shards)
        assert {shard.restart(1, 1, step) for shard in shards} == {step} == {5}
        before = [shard.snapshot(None, 60).values for shard in shards]
        workers += create_workers(config, values, group=1, generation=1, step=2)
        assert [len(report.metrics) for report in train(workers[2:], 2, 5)] == [3, 3]
        for shard, arrays in zip(shards, before, strict=True):
            for id, value in shard.snapshot(None, 60).values.items():
                np.testing.assert_array_equal(value, arrays[id])
        assert [len(report.metrics) for report in train(workers[2:], 5, 7)] == [2, 2]
        assert any((value != before[0][id]).any() for id, value in shards[0].snapshot(None, 60).values.items())
