"""Segments of an iteration: they can run one after the other as soon as their messages have arrived."""

from __future__ import annotations

import pytest

from dsinga.job import Phase, loads
from dsinga.layers import RecordInfo
from dsinga.net import create_net, partition
from dsinga.net.segments import segments
from tests.support.partition_nets import STRATEGIES, net_of

JOB = """
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ path: "x" batchsize: 6 }} }}
  layer {{ name: "ip1" type: kInnerProduct srclayers: "data" partition_dim: {0} innerproduct_conf {{ num_output: 9 }} }}
  layer {{ name: "relu" type: kReLU srclayers: "ip1" partition_dim: {1} }}
  layer {{ name: "ip2" type: kInnerProduct srclayers: "relu" partition_dim: {2} innerproduct_conf {{ num_output: 4 }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }}
}}
"""


def plan(workers, *dims):
    """Return the segments of each worker."""
    job = loads(JOB.format(*dims), "job.conf")
    net = create_net(job.neuralnet, Phase.kTrain, {"data": RecordInfo((5,), 6)})
    return [segments(local) for local in partition(net, workers).locals]


def test_a_worker_without_bridges_has_one_segment():
    for segments_ in [*plan(1, 0, 1, -1), *plan(3, 0, 0, 0)]:
        assert [segment.name for segment in segments_] == ["forward data..loss, backward loss..ip1"]
        assert segments_[0].receives == segments_[0].sends == ()


def test_a_segment_is_named_by_its_layers():
    first, second, third, *_ = plan(2, 0, 0, 1)[0]
    assert (first.name, second.name, third.name) == ("forward data..relu", "forward ip2", "forward loss, backward loss")


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("dims", [(1, 1, 1), (0, 1, 0), (-1, 0, 1), (1, -1, 1), (-1, -1, -1)])
def test_segments_can_be_run_to_the_end(workers, dims):
    waiting = [list(segments_) for segments_ in plan(workers, *dims)]
    sent: set[str] = set()
    while any(waiting):
        ready = [segments_ for segments_ in waiting if segments_ and sent.issuperset(segments_[0].receives)]
        assert ready, f"nothing can run: {[segments_[0] for segments_ in waiting if segments_]}"
        for segments_ in ready:
            sends = segments_.pop(0).sends
            assert sent.isdisjoint(sends)
            sent.update(sends)
    received = {key for segments_ in plan(workers, *dims) for segment in segments_ for key in segment.receives}
    assert received == sent


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_two_segments_of_a_worker_have_the_same_name(strategy):
    """They are tasks, and of two tasks with one key Dask runs one."""
    for local in partition(net_of("zoo", strategy, 3), 3).locals:
        names = [segment.name for segment in segments(local)]
        assert len(set(names)) == len(names)
