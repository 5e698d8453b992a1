"""Restricted Boltzmann machines in a net: the cycle is opened, both sides are checked, other params are frozen."""

import pytest

from dsinga.base.errors import UserError
from dsinga.cutting.partitioning import partition
from dsinga.job import Phase, loads
from dsinga.layers import RecordInfo
from dsinga.layers.rbm import Reconstruction
from dsinga.net import NeuralNet, create_net

NET = """
train_one_batch { alg: kCD }
net {
  layer { name: "data" type: kRecordInput store_conf { path: "x" batchsize: 6 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 } IP }
  layer { name: "vis" type: kRBMVis srclayers: "ip" srclayers: "hid" rbm_conf { hdim: 4 }
    param { name: "w" } param { name: "a" } VIS }
  layer { name: "hid" type: kRBMHid srclayers: "vis" rbm_conf { hdim: 4 }
    param { name: "w_" share_from: "w" } param { name: "b" } HID }
}
"""


def net(**changes: str) -> NeuralNet:
    text = NET
    for old, new in {"IP": "", "VIS": "", "HID": "", **changes}.items():
        text = text.replace(f" {old} }}", f" {new} }}") if old.isupper() else text.replace(old, new)
    return create_net(loads(text, "job.conf").neuralnet, Phase.kTrain, {"data": RecordInfo((7,), 6, has_labels=False)})


def test_the_cycle_becomes_an_edge_to_a_reconstruction_layer():
    built = net()
    assert [node.layer.name for node in built.nodes] == ["data", "ip", "vis", "hid", "reconstruction(vis)"]
    assert [node.sources for node in built.nodes] == [(), (0,), (1,), (2,), (2, 3)]
    assert isinstance(built.nodes[4].layer, Reconstruction)
    assert built.nodes[4].params == built.nodes[2].params == ("w", "a")
    assert built.nodes[3].params == ("w", "b")
    assert built.params["w"].shape == (4, 5)


def test_params_of_other_layers_have_no_learning_rate():
    built = net(IP='param { name: "w0" lr_scale: 3 } param { name: "b0" }')
    assert {name: param.lr_scale for name, param in built.params.items()} == {"w0": 0, "b0": 0, "w": 1, "a": 1, "b": 1}


def test_only_training_has_persistent_chains():
    text = NET.replace(" IP }", " }").replace(" VIS }", " }").replace(" HID }", " }")
    conf = loads(text).neuralnet
    conf.layer[-1].rbm_conf.persistent = True
    shapes = {}
    for phase, rows in ((Phase.kTrain, 6), (Phase.kTest, 9)):
        boltzmann = create_net(conf, phase, {"data": RecordInfo((7,), rows, has_labels=False)})
        shapes[phase] = {name: param.shape for name, param in boltzmann.params.items()}
    assert shapes[Phase.kTrain].pop("hid_chain") == (6, 4)
    assert shapes[Phase.kTrain] == shapes[Phase.kTest]


def test_a_net_without_machines_keeps_its_params_and_nodes():
    text = NET[: NET.index('  layer { name: "vis"')].replace(" IP }", "param { lr_scale: 3 } }") + "}"
    plain = create_net(loads(text).neuralnet, Phase.kTrain, {"data": RecordInfo((7,), 6)})
    assert [param.lr_scale for param in plain.params.values()] == [3, 1]
    assert len(plain.nodes) == 2


@pytest.mark.parametrize("dim", [0, 1])
def test_workers_have_rows_of_both_sides(dim: int):
    cut = partition(net(VIS=f"partition_dim: {dim}", HID=f"partition_dim: {dim}"), 2)
    for name in ("vis", "hid", "reconstruction(vis)"):
        assert cut.cuts[name].dim == 0
        assert cut.cuts[name].reason == ("samples whole rows" if dim else "")
    for local in cut.locals:
        assert [node.layer.name for node in local.nodes] == ["data", "ip", "vis", "hid", "reconstruction(vis)"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'srclayers: "ip" srclayers: "hid"': 'srclayers: "ip"'}, "'vis': must have its hidden layer, 'hid', among"),
        ({'"w_" share_from: "w"': '"w_"'}, "'hid': has a weight of its own, not that of 'vis'; .* share_from: 'w'"),
        (
            {'srclayers: "ip" srclayers: "hid"': 'srclayers: "ip"', 'srclayers: "vis"': 'srclayers: "ip"'},
            "'hid': needs a kRBMVis layer as its source, but 'ip' is none",
        ),
        ({"HID": "location: 1"}, "'hid': must have the same location as 'vis', the other side"),
        ({"HID": "partition_dim: -1"}, "'hid': must have the same partition_dim as 'vis', the other side"),
        ({"hdim: 4 }\n    param { name: \"w_\"": "hdim: 3 }\n    param { name: \"w_\""}, "its shape is .*, but 'w' of"),
        (
            {"hdim: 4 }\n    param { name: \"w\" }": "hdim: 4 persistent: true }\n    param { name: \"w\" }"},
            "'vis': persistent belongs to the hidden layer; set it there",
        ),
    ],
)  # fmt: skip
def test_sides_that_do_not_fit_are_refused(changes: dict[str, str], message: str):
    with pytest.raises(UserError, match=message) as caught:
        net(**changes)
    assert "job.conf:" in str(caught.value)


def test_a_visible_side_alone_is_refused():
    alone = NET[: NET.index('  layer { name: "hid"')].replace(' srclayers: "hid"', "").replace(" IP }", " }")
    alone = alone.replace(" VIS }", " }") + "}"
    with pytest.raises(UserError, match="'vis': is the source of no kRBMHid layer"):
        create_net(loads(alone).neuralnet, Phase.kTrain, {"data": RecordInfo((7,), 6)})
