"""A server group that is lost and comes back from a linked one: no change is missing or counted twice."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.base.errors import RunError
from dsinga.cluster.server import Push
from tests.support.refusals import refused
from tests.support.shard_network import GRAPHS, WAIT, Network, ones

EVERY_GRAPH = {**GRAPHS, "kite": [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]}


def linked(network, group):
    return [other for pair in network.edges for other in pair if group in pair and other != group]


class Losing(Network):
    """A network that loses a group and creates it anew, and that counts all changes."""

    def __init__(self, edges, frequency):
        super().__init__(edges, frequency)
        self.edges = edges
        self.steps = {group: [0, 0] for group in self.generations}
        self.total = [0.0, 0.0]

    def push(self, group, id, change):
        step = self.steps[group][id]
        self.shards[group].push(Push(self.generations[group], group, step, 0), {id: ones(-change)})
        self.steps[group][id] += 1
        self.total[id] += change

    def replace(self, group, source):
        """Create a lost group from the values of those linked with it; the new shard is not linked yet."""
        self.generations[group] += 1
        values = {}
        for other in linked(self, group):
            synchronisation = self.shards[other].group_sync
            for id, share in synchronisation.values_for(group, self.generations[group], source).values.items():
                values[id] = values.get(id, 0) + share
        start = max(self.steps[group])
        self.steps[group] = [start, start]
        return self.create(group, values, start)

    def link(self, group, shard):
        self.shards[group] = shard
        self.lost.discard(group)
        for other in linked(self, group):
            self.shards[other].group_sync.link(group, self.generations[group])
            shard.group_sync.link(other, self.generations[other])

    def deliver_all(self):
        while self.messages:
            self.deliver(-1)

    def train(self, data, groups):
        """Push random changes of some groups, and deliver some messages."""
        for _ in range(data.draw(st.integers(0, 12))):
            if self.messages and data.draw(st.booleans()):
                self.deliver(data.draw(st.integers(0, len(self.messages) - 1)))
            else:
                self.push(
                    data.draw(st.sampled_from(groups)),
                    data.draw(st.integers(0, 1)),
                    2.0 ** data.draw(st.integers(0, 9)),
                )


@settings(max_examples=100)
@given(graph=st.sampled_from(sorted(EVERY_GRAPH)), data=st.data(), frequency=st.integers(1, 3))
def test_every_change_of_the_others_reaches_every_group_once(graph, data, frequency):
    network = Losing(EVERY_GRAPH[graph], frequency)
    groups = list(network.generations)
    for _ in range(2):
        network.train(data, groups)
        network.flush()  # what the lost group has not sent is lost, and cannot be counted here
        lost = data.draw(st.sampled_from(groups))
        others = [group for group in groups if group != lost]
        for group in others:
            network.push(group, 0, 1024.0)  # a message to the lost group is in flight
        network.lose(lost)
        network.train(data, others)
        network.deliver_all()  # what is on its way to the source by another route is lost to the new group
        shard = network.replace(lost, data.draw(st.sampled_from(linked(network, lost))))
        network.train(data, others)
        network.link(lost, shard)
    network.train(data, groups)
    network.flush()
    for group in groups:
        for id in (0, 1):
            np.testing.assert_array_equal(network.value(group, id), ones(network.total[id]))


def test_others_go_on_and_say_what_they_wait_for():
    network = Losing(GRAPHS["chain"], 1)
    network.lose(0)
    for _ in range(3):
        for group in (1, 2, 3):
            network.push(group, 0, 1.0)
    network.deliver_all()
    np.testing.assert_array_equal(network.value(3), ones(6))
    np.testing.assert_array_equal(network.value(2), ones(3))
    reason = "server group 0 was lost: changes could not be sent to server group 0: OSError('connection refused')"
    assert network.shards[2].pending() == reason
    flush = network.shards[2].group_sync.flush()
    network.link(0, network.replace(0, 2))
    assert not flush.done()
    network.deliver_all()
    flush.result(0)
    for group in range(4):
        np.testing.assert_array_equal(network.value(group), ones(9))
    assert network.shards[2].pending() == "nothing is waited for"


def test_the_lost_generation_cannot_change_anything():
    network = Losing(GRAPHS["two"], 1)
    stale = network.shards[0]
    network.lose(0)
    network.replace(0, 1)
    stale.push(Push(0, 0, 0, 0), {0: ones(-1)})
    network.generations[0] = 0
    refused(lambda: network.deliver(), "group 0 is of", "is of generation", error=RunError)
    assert not network.value(1).any()


def test_it_comes_back_with_the_updaters_state():
    network = Losing(GRAPHS["two"], 1)
    network.push(0, 0, 1.0)
    network.lose(1)
    copy = network.shards[0].group_sync.values_for(1, 1, source=0)
    own = network.shards[0].snapshot(None, WAIT)
    for id in (0, 1):
        np.testing.assert_array_equal(copy.values[id], own.values[id])
        assert copy.state[id].keys() == own.state[id].keys()
        for name, array in own.state[id].items():
            np.testing.assert_array_equal(copy.state[id][name], array)
            assert array is not copy.state[id][name]
