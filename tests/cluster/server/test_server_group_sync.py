"""The built-in synchronisation of server groups passes the contract."""

from dsinga.base.registry import lookup
from dsinga.cutting.cluster_topology import Topology
from dsinga.testing import GroupSyncContract


class TestSum(GroupSyncContract):
    def create(self, groups):
        return lookup("sync_method", "kSum")(Topology(1, 1, groups=groups, server_groups=groups, sync_freq=3), None)
