"""A synchronisation of server groups that a user has registered, in a run."""

from functools import partial

import numpy as np

import dsinga
from dsinga.cluster.server import SumSync
from dsinga.job import ClusterConf
from tests.support.registries import restored_registry


class Counting(SumSync):
    """Counts the slices that begin."""

    begun = []

    def begin(self, served_slice):
        self.begun.append(served_slice.spec.slice.param)
        super().begin(served_slice)


def test_a_run_uses_it(job, threads):
    with restored_registry():

        @dsinga.register("sync_method", "Counting")
        def counting(topology, average):
            return partial(Counting, frequency=topology.sync_freq)

        conf = ClusterConf(nworker_groups=2, nserver_groups=2, user_sync_method="Counting")
        result = dsinga.train(job.replace(cluster=conf, train_steps=4), threads, progress=False)
    assert sorted({*Counting.begun}) == sorted(result.params)
    assert all(np.isfinite(value).all() for value in result.params.values())
