"""The agreement of server groups by the mean of their changes, which a job names with ``sync_method: kMean``."""

from __future__ import annotations

from functools import partial

from dsinga.addons.sites.asynchronous_mean import AsynchronousMean
from dsinga.addons.sites.mean_policy import MeanPolicy
from dsinga.addons.sites.synchronous_mean import SynchronousMean
from dsinga.base.registry import register
from dsinga.cluster.server.agreement import Policy
from dsinga.job.topology import Topology
from dsinga.job.updaterconf import EMAConf


@register("agreement", "kMean")
def mean_of_changes(topology: Topology, average: EMAConf | None) -> Policy:
    """Return the policy of server groups, of one worker group each, that agree by the mean of their changes."""
    conf = topology.mean
    assert conf is not None
    policy = MeanPolicy(conf, topology.sync_freq, topology.server_groups, average)
    return partial(AsynchronousMean if conf.asynchronous else SynchronousMean, policy=policy)
