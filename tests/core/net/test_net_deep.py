"""Nets with thousands of layers in a chain are built without recursion, in time proportional to their length."""

import sys

from dsinga.job import Phase, check, loads
from dsinga.job.layerconf import LayerConf
from dsinga.layers import RecordInfo
from dsinga.net import create_net
from dsinga.net.needed_layers import needed_layers

LAYERS = sys.getrecursionlimit() * 2
RECORDS = {"data": RecordInfo((4,), 2)}


def test_a_chain_longer_than_the_recursion_limit_is_built():
    head = 'train_steps: 1 neuralnet { layer { name: "l0" type: kRecordInput store_conf { path: "x" batchsize: 2 } }'
    chain = "".join(f' layer {{ name: "l{k}" type: kReLU srclayers: "l{k - 1}" }}\n' for k in range(1, LAYERS))
    job = loads(f"{head}{chain} }}")
    check(job)
    net = create_net(job.neuralnet, Phase.kTrain, {"l0": RECORDS["data"]})
    assert len(net.stages) == LAYERS
    needed = needed_layers(job.neuralnet, Phase.kTrain, [f"l{LAYERS - 1}"])
    assert [type(layer) for layer in needed.layer] == [LayerConf] * LAYERS
