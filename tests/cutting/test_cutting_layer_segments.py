"""Segments of an iteration: they can run one after the other as soon as their messages have arrived."""

import pytest

from dsinga.cutting.layer_segments import MAX_SEGMENTS, segments
from dsinga.cutting.partitioning import partition
from dsinga.job import Phase, loads
from dsinga.layers import RecordInfo
from dsinga.net import create_net
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


def test_without_bridges_segments_begin_at_layers_with_params():
    names = ["forward data", "forward ip1..relu", "forward ip2", "forward loss"]
    names += ["backward loss", "backward ip2", "backward relu..ip1"]
    for segments_ in [*plan(1, 0, 1, -1), *plan(3, 0, 0, 0)]:
        assert [segment.name for segment in segments_] == names
        assert not any(segment.receives or segment.sends for segment in segments_)


def test_bridges_cut_between_layers_without_params_too():
    names = [segment.name for segment in plan(2, 0, 1, 1)[0]]
    assert names == [
        *("forward data", "forward ip1", "forward relu", "forward ip2", "forward loss"),
        *("backward loss", "backward ip2", "backward relu", "backward ip1"),
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pass_is_in_one_segment(strategy):
    net = net_of("zoo", strategy, 3)
    for local in partition(net, 3).locals:
        passes = [layer_pass for segment in segments(local) for layer_pass in segment.passes]
        assert len(set(passes)) == len(passes)
        assert {layer for layer, _ in passes} >= {stage.layer.name for stage in local.stages if stage.params}


def test_a_deep_net_has_a_bounded_number_of_segments():
    layers = "".join(
        f'layer {{ name: "ip{k}" type: kInnerProduct srclayers: "{f"ip{k - 1}" if k else "data"}" '
        "innerproduct_conf { num_output: 3 } }"
        for k in range(50)
    )
    text = f"""neuralnet {{
      layer {{ name: "data" type: kRecordInput store_conf {{ path: "x" batchsize: 6 }} }} {layers}
      layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip49" srclayers: "data" }} }}"""
    net = create_net(loads(text, "job.conf").neuralnet, Phase.kTrain, {"data": RecordInfo((5,), 6)})
    assert MAX_SEGMENTS < len(segments(net)) <= 2 * (MAX_SEGMENTS + 1)


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
