"""Which nodes get a gradient, where kSplit layers are added, and when features are released."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsinga.job import NetConf, Phase
from dsinga.layers.interface.context import cut_evenly
from dsinga.net import NeuralNet, create_net
from tests.support.net_cases import FLAT, build, dense, layer, names, sources

DATA = layer("data", "kCSVInput")


def net_of(text: str) -> NeuralNet:
    """Return the net of "NAME TYPE SOURCE..., ..." above DATA."""
    given = map(str.split, text.split(","))
    return build(
        DATA, *(dense(name, *into) if kind == "dense" else layer(name, kind, *into) for name, kind, *into in given)
    )


def test_a_split_is_added_where_several_gradients_are_added():
    net = net_of("a dense data, left kReLU a, right kSigmoid a, loss kEuclideanLoss left right")
    assert names(net) == ["data", "a", "split(a)", "left", "right", "loss"]
    assert sources(net, "left") == sources(net, "right") == ["split(a)"]
    assert net.layer("split(a)").part_shapes == ((4, 3), (4, 3))


def test_a_layer_that_takes_one_source_twice_gets_two_parts():
    net = build(DATA, dense("a", "data"), layer("join", "kConcate", "a", "a", concate_conf={"concate_dim": 1}))
    assert sources(net, "join") == ["split(a)", "split(a)"]
    assert [edge.part for edge in net.stages[-1].edges] == [0, 1]


def test_inputs_outputs_and_label_edges_need_no_split():
    # Below "plain" nothing can be trained: it gets no gradient, however many destinations it has.
    ends = "la kSoftmaxLoss a data, lb kSoftmaxLoss b data, top kArgSort a, hits kAccuracy a data"
    net = net_of(f"plain kSTanh data, a dense plain, b dense plain, {ends}")
    assert not [name for name in names(net) if name.startswith("split")]


def test_an_output_layer_beside_a_split_reads_the_layer_itself():
    losses = "lb kSoftmaxLoss b data, lc kSoftmaxLoss c data"
    net = net_of(f"a dense data, top kArgSort a, b dense a, c dense a, {losses}")
    assert sources(net, "top") == ["a"]
    assert sources(net, "b") == sources(net, "c") == ["split(a)"]


def test_gradients_flow_only_from_losses_to_what_can_be_trained():
    ends = "loss kSoftmaxLoss relu data, top kArgSort relu"
    net = net_of(f"norm kSTanh data, a dense norm, relu kReLU a, unused dense norm, {ends}")
    stages = {stage.layer.name: stage for stage in net.stages}
    assert [name for name, stage in stages.items() if stage.backward] == ["a", "relu", "loss"]
    assert stages["a"].needs == (False,)
    assert stages["relu"].needs == (True,)
    assert stages["loss"].needs == (True, False)
    assert net.losses == ("loss",)


@st.composite
def nets(draw):
    """A random net of concatenations, activations and inner products."""
    layers, count = [DATA], draw(st.integers(1, 10))
    for k in range(count):
        earlier = [layer.name for layer in layers]
        into = draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=3))
        kind = draw(st.sampled_from(["kConcate", "kReLU", "kInnerProduct"]))
        if kind == "kConcate":
            layers.append(layer(f"n{k}", kind, *into, concate_conf={"concate_dim": 1}))
        else:
            layers.append(layer(f"n{k}", kind, into[0]) if kind == "kReLU" else dense(f"n{k}", into[0]))
    layers.append(layer("loss", "kSoftmaxLoss", f"n{count - 1}", "data"))
    return create_net(NetConf(layer=layers), Phase.kTrain, {"data": FLAT})


@given(nets())
def test_features_are_released_once_and_never_too_early(net):
    released = [node for stage in net.stages for node in stage.releases]
    assert sorted(released) == list(range(len(net.nodes)))
    alive = set()
    for position, stage in enumerate(net.stages):
        assert all(edge.node in alive for edge in stage.edges)
        alive = (alive | {position}) - set(stage.releases)
    assert not alive


@given(nets())
def test_backward_runs_between_losses_and_trainable_layers_only(net):
    """Against the definition: backward runs where a path leads up to a loss and one down to something trainable."""
    above: list[set[int]] = [set() for _ in net.nodes]
    for position, stage in enumerate(net.stages):
        for edge in stage.edges:
            if not edge.labels:
                above[edge.node].add(position)

    def reaches_loss(position):
        return net.nodes[position].layer.is_loss or any(map(reaches_loss, above[position]))

    def trains(position):
        node = net.nodes[position]
        return bool(node.layer.params) or any(
            trains(edge.node) for edge in net.stages[position].edges if not edge.labels
        )

    for position, stage in enumerate(net.stages):
        assert stage.backward == (reaches_loss(position) and trains(position))
        if stage.backward and not stage.layer.is_loss and not stage.layer.part_shapes:
            senders = [sender for sender in net.stages for _, edge in sender.feeds if edge.node == position]
            assert len(senders) == 1  # a kSplit stands between wherever there are more


@given(st.integers(0, 200), st.integers(1, 20))
def test_cutting_evenly_is_the_rule_of_array_split(total, parts):
    cut = cut_evenly(total, parts)
    assert [list(range(rows.start, rows.stop)) for rows in cut] == [
        list(part) for part in np.array_split(np.arange(total), parts)
    ]
    assert all(rows.total == total for rows in cut)


def test_a_layer_that_takes_only_labels_needs_no_gradient():
    label, loss = layer("label", "kLabel", "a"), layer("loss", "kEuclideanLoss", "b", "label")
    net = build(DATA, dense("a", "data", 1), dense("b", "a", 1), label, loss)
    assert [stage.needs for stage in net.stages if stage.layer.is_loss] == [(True, False)]
