"""Building the net of a phase: layers, order, shapes, params, and errors."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.job import LayerConf, LayerType, NetConf, Phase, loads
from dsinga.layers import RecordInfo
from dsinga.net import create_net, filter_layers, input_layers
from tests.support.net_cases import FLAT, IMAGES, layer, names, net_of, sources
from tests.support.refusals import refused

CONVNET = """
layer { name: "data" type: kRecordInput store_conf { path: "train" } include: kTrain }
layer { name: "data" type: kRecordInput store_conf { path: "test" } include: kTest }
layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 5 kernel: 3 }
  param { name: "w" } param { name: "b" } }
layer { name: "pool" type: kPooling srclayers: "conv" pooling_conf { kernel: 3 stride: 2 } }
layer { name: "ip" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 10 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" exclude: kTest }
layer { name: "softmax" type: kSoftmax srclayers: "ip" include: kTest }
"""


def test_shapes_sources_and_params_of_a_convnet():
    net = net_of(CONVNET)
    assert names(net) == ["data", "conv", "pool", "ip", "loss"]
    assert [node.layer.shape for node in net.nodes] == [(4, 3, 8, 8), (4, 5, 6, 6), (4, 5, 2, 2), (4, 10), (4, 10)]
    assert [node.sources for node in net.nodes] == [(), (0,), (1,), (2,), (3, 0)]
    assert {name: param.shape for name, param in net.params.items()} == {
        "w": (5, 27), "b": (5,), "ip_weight": (10, 20), "ip_bias": (10,)
    }  # fmt: skip
    assert [net.params[name].size for name in net.nodes[1].params] == [135, 5]


def test_filter_and_input_layers():
    conf = loads(f"neuralnet {{ {CONVNET} }}").neuralnet
    assert [item.name for item in filter_layers(conf, Phase.kVal)] == ["conv", "pool", "ip", "loss"]
    (data,) = input_layers(conf, Phase.kTest)
    assert data.store_conf.path == "test"


def test_mistakes_are_named_with_their_remedies() -> None:
    refused(lambda: net_of(CONVNET).layer("pol"), "'pol'", "did you mean 'pool'")
    refused(lambda: net_of("\n" + DATA, other=IMAGES), "conf:3: ", "'data' reads a store")
    with pytest.raises(UserError, match=r"job.conf:3: layer 'loss' takes labels from 'data', .* give labels: y"):
        net_of(
            DATA + 'layer { name: "loss" type: kSoftmaxLoss srclayers: ["data", "data"] }',
            data=RecordInfo((6,), 4, has_labels=False),
        )


def test_a_net_can_be_pickled():
    net = net_of(CONVNET)
    assert net.stages[1].layer is net.nodes[1].layer
    copy = pickle.loads(pickle.dumps(net))
    assert repr(copy) == repr(net) == "NeuralNet(kTrain: 5 layers, 350 numbers in 4 params)"
    assert [node[1:] for node in copy.nodes] == [node[1:] for node in net.nodes]
    assert copy.stages[1].layer is copy.nodes[1].layer


DATA, BOTH = 'layer { name: "data" type: kRecordInput }\n', '"data", "data"'
SORTED = 'layer { name: "below" type: kArgSort srclayers: "data" }\n'
CUT = 'layer { name: "below" type: kSlice srclayers: "data" slice_conf { slice_dim: 1 num_slices: 3 } }\n'
X = 'layer { name: "x" type: kReLU srclayers: "below" }'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('layer { name: "x" }', r"job.conf:2: layer 'x' has no type"),
        ('layer { name: "x"\nuser_type: "kReLUU" }', r"job.conf:3: layer 'x': .*'kReLUU'; did you mean 'kReLU'\?"),
        (f'{DATA}layer {{ name: "data" type: kReLU srclayers: "data" }}', r"job.conf:3: layer 'data' .*twice.*line 2"),
        (f'{DATA}layer {{ name: "x" type: kReLU\nsrclayers: [{BOTH}] }}', r"job.conf:4: layer 'x'.*1 source.*not 2"),
        (f'{DATA}layer {{ name: "x" type: kConvolution srclayers: "data" }}', "job.conf:3: layer 'x'.*convolution_con"),
        (f"{DATA}{SORTED}{X}", r"job.conf:4: layer 'x': cannot follow 'below', an output layer \(kArgSort\)"),
        (f"{DATA}{CUT}{X}", r"job.conf:3: layer 'below': hands out 3 parts, but is the source of 1 layers"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_place(text, message):
    refused(lambda: net_of(text), message)


def test_destinations_of_a_slice_take_its_parts_in_order():
    net = net_of("""
        layer { name: "data" type: kRecordInput }
        layer { name: "cut" type: kSlice srclayers: "data" slice_conf { slice_dim: 1 num_slices: 2 } }
        layer { name: "left" type: kReLU srclayers: "cut" }
        layer { name: "right" type: kReLU srclayers: "cut" }
        layer { name: "again" type: kConcate srclayers: "left" srclayers: "right" concate_conf { concate_dim: 1 } }
    """)
    assert [net.layer(name).shape[1] for name in ("cut", "left", "right", "again")] == [3, 2, 1, 3]
    assert [edge.part for name in ("left", "right") for edge in net.stages[net.position(name)].edges] == [0, 1]


@st.composite
def graphs(draw):
    """A random acyclic graph, written in a random order: [(name, sources)], names telling no order."""
    count = draw(st.integers(1, 12))
    labels = draw(st.permutations(range(count)))
    chosen = [draw(st.lists(st.integers(0, k - 1), unique=True, max_size=4)) if k else [] for k in range(count)]
    layers = [(f"l{labels[k]}", [f"l{labels[s]}" for s in into]) for k, into in enumerate(chosen)]
    return [layers[k] for k in draw(st.permutations(range(count)))]


def as_layers(graph):
    return [
        LayerConf(name=name, type=LayerType.kConcate, srclayers=into) if into else layer(name, "kCSVInput")
        for name, into in graph
    ]


@given(graphs())
def test_random_graphs_come_out_in_topological_order(graph):
    """Each layer once, after its sources, joined to the sources that the job names."""
    net = create_net(NetConf(layer=as_layers(graph)), Phase.kTrain, {name: FLAT for name, _ in graph})
    assert sorted(names(net)) == sorted(name for name, _ in graph)
    for position, node in enumerate(net.nodes):
        assert all(source < position for source in node.sources)
        assert sources(net, node.layer.name) == dict(graph)[node.layer.name]


@given(graphs())
def test_the_order_is_the_jobs_where_that_is_topological(graph):
    conf = NetConf(layer=as_layers(graph))
    first = create_net(conf, Phase.kTrain, {name: FLAT for name, _ in graph})
    conf.layer = [node.layer.conf for node in first.nodes]
    again = create_net(conf, Phase.kTrain, {name: FLAT for name, _ in graph})
    assert names(again) == names(first)


@given(graphs(), st.data())
def test_each_phase_gets_its_layers(graph, data):
    """Layers of other phases neither appear nor count as sources, whatever the mixture of include and exclude."""
    phases = (Phase.kTrain, Phase.kVal, Phase.kTest)
    conf = NetConf(layer=[])
    for added in as_layers([(name, []) for name, _ in graph]):
        rule = data.draw(st.sampled_from(["include", "exclude", None]))
        if rule:
            setattr(added, rule, data.draw(st.lists(st.sampled_from(phases), unique=True, min_size=1)))
        conf.layer.append(added)
    records = {name: FLAT for name, _ in graph}
    for phase in phases:
        given = [item for item in conf.layer if not item.include or phase in item.include]
        expected = [item.name for item in given if phase not in item.exclude]
        if expected:
            assert names(create_net(conf, phase, records)) == expected
        else:
            with pytest.raises(UserError, match=f"no layer is in phase {phase.name}"):
                create_net(conf, phase, records)
