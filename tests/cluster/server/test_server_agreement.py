"""The built-in agreement of server groups passes the contract."""

from dsinga.base.registry import lookup
from dsinga.job.topology import Topology
from dsinga.testing import AgreementContract


class TestSum(AgreementContract):
    def create(self, groups):
        return lookup("agreement", "kSum")(Topology(1, 1, groups=groups, server_groups=groups, sync_freq=3), None)
