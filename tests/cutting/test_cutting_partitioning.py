"""Nets partitioned by SINGA's rule: inserted layers, parts of params, and errors."""

import numpy as np
import pytest

from dsinga.cutting.bridges import BridgeSrc
from dsinga.cutting.partitioned import PartitionedNet, join_params, split_params
from dsinga.cutting.partitioning import partition
from dsinga.job import JobError, loads
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.net_cases import IMAGES, build, dense, layer
from tests.support.partition_nets import net_of

ROWS, FEATURES, WHOLE = 0, 1, -1
DATA = layer("data", "kCSVInput")


def chain(first: int, second: int, kind: str = "dense") -> NeuralNet:
    """A layer "a" with 6 features, cut one way, and "b", fully connected to it or alike, another."""
    cut = {"partition_dim": second}
    b = dense("b", "a", 5, **cut) if kind == "dense" else layer("b", kind, "a", **cut)
    return build(layer("data", "kCSVInput", partition_dim=first), dense("a", "data", 6, partition_dim=first), b)


def between(cut: PartitionedNet) -> list[str]:
    """Return the layers that partitioning has added after "a": location and type, and for bridges the target."""
    connections = []
    for node, place in zip(cut.nodes, cut.places, strict=True):
        if place.layer == "a" and node.layer.name != "a":
            target = getattr(node.layer, "location", None)
            kind = node.layer.conf.type_name
            if kind != "kBridgeDst":
                connections.append(f"{place.location} {kind}{'' if target is None else f' to {target}'}")
    return sorted(connections)


EXCHANGE = ["0 kBridgeSrc to 1", "0 kConcate", "1 kBridgeSrc to 0", "1 kConcate"]


@pytest.mark.parametrize(
    ("first", "second", "kind", "put"),
    [
        (ROWS, ROWS, "dense", []),
        (FEATURES, FEATURES, "kReLU", []),
        (ROWS, FEATURES, "dense", [*EXCHANGE, "0 kSplit", "1 kSplit"]),
        (FEATURES, FEATURES, "dense", [*EXCHANGE, "0 kSplit", "1 kSplit"]),
        (ROWS, FEATURES, "kReLU", [*EXCHANGE, "0 kSlice", "1 kSlice"]),
        (FEATURES, ROWS, "dense", [*EXCHANGE, "0 kSlice", "1 kSlice"]),
        (FEATURES, FEATURES, "kSoftmax", [*EXCHANGE, "0 kSlice", "1 kSlice"]),  # gathered: cut by rows
        (WHOLE, ROWS, "dense", ["0 kSlice", "0 kBridgeSrc to 1"]),
        (WHOLE, FEATURES, "dense", ["0 kSplit", "0 kBridgeSrc to 1"]),
        (ROWS, WHOLE, "dense", ["1 kBridgeSrc to 0", "0 kConcate"]),
        (FEATURES, WHOLE, "dense", ["1 kBridgeSrc to 0", "0 kConcate"]),
        (WHOLE, WHOLE, "dense", []),
    ],
)
def test_singas_rule(first: int, second: int, kind: str, put: list[str]):
    assert between(partition(chain(first, second, kind), 2)) == sorted(put)


def test_layers_at_two_locations_are_joined_by_one_bridge():
    net = build(layer("data", "kCSVInput", location=1), dense("a", "data", 6, location=1), dense("b", "a", location=0))
    cut = partition(net, 2)
    assert between(cut) == ["1 kBridgeSrc to 0"]
    assert [[node.layer.name for node in local.nodes][::-1] for local in cut.locals] == [
        ["b", "receive(a:all@0@1-0)"],
        ["send(a:all@0@1-0)", "a", "data"],
    ]


def test_bridge_keys_are_unique_where_a_layer_is_named_like_a_part_of_another():
    first, second = {"location": 0}, {"location": 1}
    halves = layer("s", "kSlice", "a", slice_conf={"slice_dim": 1, "num_slices": 2}, **first)
    net = build(
        layer("data", "kCSVInput", **first), dense("a", "data", 6, **first), halves, dense("s.0", "data", 3, **first),
        dense("b", "s", **second), dense("c", "s", **second), dense("d", "s.0", **second),
    )  # fmt: skip
    keys = [node.layer.key for node in partition(net, 2).nodes if isinstance(node.layer, BridgeSrc)]
    assert len(set(keys)) == len(keys) == 3


def test_a_feature_that_several_layers_need_is_redistributed_once():
    hidden = {"partition_dim": FEATURES}
    net = build(
        DATA, dense("a", "data", 6), dense("b", "a", 4, **hidden), dense("c", "a", 4, **hidden),
        layer("loss", "kEuclideanLoss", "b", "c", partition_dim=FEATURES),
    )  # fmt: skip
    cut = partition(net, 2)
    sent = [node.layer.name for node in cut.nodes if node.layer.name.startswith("send(split(a)")]
    assert len(sent) == 2, sent


def test_params_are_cut_with_the_layer():
    net = build(
        layer("data", "kRecordInput", store_conf={"path": "x", "batchsize": [4]}),
        layer("conv", "kConvolution", "data", convolution_conf={"num_filters": 10}, partition_dim=FEATURES),
        dense("ip", "conv", 10, partition_dim=FEATURES),
        layer("turned", "kInnerProduct", "ip", partition_dim=FEATURES,
              innerproduct_conf={"num_output": 7, "transpose": True, "bias_term": False}),
        dense("shared", "turned", 3),
        data=IMAGES,
    )  # fmt: skip
    cut = partition(net, 4)
    shapes = {name: part.shape for name, part in cut.parts.items()}
    assert [shapes[f"conv_weight@{part}"][0] for part in range(4)] == [3, 3, 2, 2]
    assert [shapes[f"conv_bias@{part}"] for part in range(4)] == [(3,), (3,), (2,), (2,)]
    assert [shapes[f"ip_weight@{part}"] for part in range(4)] == [(3, 360), (3, 360), (2, 360), (2, 360)]
    assert [shapes[f"turned_weight@{part}"] for part in range(4)] == [(10, 2), (10, 2), (10, 2), (10, 1)]
    assert shapes["shared_weight"] == (3, 7)
    assert cut.parts["shared_weight"].users == (0, 1, 2, 3)
    assert all(part.users == (int(name[-1]),) for name, part in cut.parts.items() if "@" in name)
    rng = np.random.default_rng(0)
    whole = {name: rng.normal(size=param.shape).astype(np.float32) for name, param in net.params.items()}
    parts = split_params(cut.parts, whole)
    joined = join_params(cut.parts, parts, {name: array.shape for name, array in whole.items()})
    assert all(np.array_equal(joined[name], array) for name, array in whole.items())
    assert all(array.flags.c_contiguous and array.shape == shapes[name] for name, array in parts.items())


def test_a_param_of_two_layers_that_are_cut_differently_stays_whole_with_a_reason():
    net = build(
        DATA, dense("a", "data", 6, partition_dim=FEATURES), dense("b", "a", 6, param=[{"share_from": "a_weight"}])
    )
    cut = partition(net, 2)
    assert cut.cuts["a"].dim == ROWS
    assert cut.cuts["a"].reason == "shares its param 'a_weight' with a layer that is not cut alike"
    assert "a_weight" in cut.parts


def test_a_layer_that_cannot_be_cut_by_features_has_a_reason():
    cut = partition(net_of("convnet", "features"), 2)
    reasons = {name: cut.reason for name, cut in cut.cuts.items() if cut.reason}
    assert reasons.keys() == {"data", "norm1", "loss"}
    assert all(cut.cuts[name].dim == ROWS for name in reasons)
    assert "channels" in reasons["norm1"]
    assert not any(cut_.reason for cut_ in partition(net_of("convnet", "rows"), 2).cuts.values())


def test_one_worker_gets_the_net_as_it_is():
    net = net_of("zoo", "mixed", 1)
    cut = partition(net, 1)
    assert cut.locals == (net,)
    assert list(cut.parts) == list(net.params)


def test_workers_without_a_layer_idle():
    cut = partition(chain(WHOLE, WHOLE), 3)
    assert [len(local.nodes) for local in cut.locals] == [3, 0, 0]


JOB = """neuralnet {
  layer { name: "data" type: kCSVInput store_conf { path: "x" batchsize: 4 } partition_dim: -1 }
  layer { name: "a" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
          PLACE }
}"""


@pytest.mark.parametrize(
    ("place", "parts", "message"),
    [
        ("partition_dim: 0", 5, r"job.conf:4: layer 'a': has 4 rows, which cannot be cut over 5 workers"),
        ("partition_dim: 1", 4, r"job.conf:4: layer 'a': has 3 features, which cannot be cut over 4 workers"),
        ("location: 2", 2, r"job.conf:4: layer 'a': location 2 is beyond the group's 2 workers"),
    ],
)
def test_more_workers_than_rows_or_features_are_refused(place: str, parts: int, message: str):
    conf = loads(JOB.replace("PLACE", place), "job.conf").neuralnet
    with pytest.raises(JobError, match=message):
        partition(create_net(conf, net_of("convnet").phase, {"data": RecordInfo((6,), 4)}), parts)
