"""Averaging passes the contract, synchronous or not."""

from dsinga.addons.sites.mean_conf import MeanConf
from dsinga.base.registry import lookup
from dsinga.cutting.cluster_topology import Topology
from dsinga.testing import GroupSyncContract
from tests.support.mean_groups import rate


def policy(groups, **mean):
    conf = MeanConf(**mean)
    return lookup("sync_method", "kMean")(
        Topology(1, 1, groups=groups, server_groups=groups, sync_freq=3, mean=conf), None
    )


class TestSynchronous(GroupSyncContract):
    tolerance = 0.0

    def create(self, groups):
        return policy(groups)


class TestDelayed(GroupSyncContract):
    tolerance = 0.0

    def create(self, groups):
        return policy(groups, delay=1, mixing=0.5, fragments=2, compression="kInt8")


class TestAsynchronous(GroupSyncContract):
    def create(self, groups):
        return policy(groups, asynchronous=True, updater=rate("kSGD", 1.0))  # copies differ with momentum
