"""Which layers records without labels can be computed with."""

import pytest

from dsinga.job import Phase, loads
from dsinga.layers import RecordInfo
from dsinga.net import create_net
from dsinga.net.needed_layers import needed_layers
from tests.support.refusals import refused

NET = """
name: "x" train_steps: 1 updater {{ type: kSGD learning_rate {{ type: kFixed base_lr: 0.1 }} }}
neuralnet {{
  layer {{ name: "words" type: kRecordInput store_conf {{ path: "x" batchsize: 2 }} }}
  layer {{ name: "lengths" type: kSequenceLength srclayers: "words" }}
  layer {{ name: "embedding" type: kEmbedding srclayers: "words" embedding_conf {{ vocab_size: 5 }} }}
  layer {{ name: "pool" type: kPooling1D srclayers: "embedding" {lengths} }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "pool" innerproduct_conf {{ num_output: 2 }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "words" }}
}}
"""

SHARED = 'param {{ name: "weight{}" share_from: "first_weight" }}'


@pytest.mark.parametrize("lengths", ['srclayers: "lengths"', ""])
def test_lengths_that_a_layer_makes_are_no_labels_of_records(lengths: str):
    net = loads(NET.format(lengths=lengths)).neuralnet
    names = [layer.name for layer in needed_layers(net, Phase.kTest).layer]
    assert names == ["words", "lengths", "embedding", "pool", "ip"]


def test_lengths_by_the_labels_of_records_need_these():
    net = loads(NET.format(lengths='srclayers: "words"')).neuralnet
    refused(lambda: needed_layers(net, Phase.kTest, ["ip"]), "layer 'ip' needs labels")


def test_a_param_whose_owner_is_dropped_belongs_to_the_first_layer_that_shares_it():
    layers = [
        f'layer {{ name: "{name}" type: kInnerProduct srclayers: "x" innerproduct_conf {{ num_output: 3 }} {params} }}'
        for name, params in (("first", ""), ("second", SHARED.format(2)), ("third", SHARED.format(3)))
    ]
    layers.append('layer { name: "sum" type: kAdd srclayers: ["second", "third"] }')
    text = "neuralnet { " + 'layer { name: "x" type: kRecordInput store_conf { shape: 5 batchsize: 2 } } '
    net = needed_layers(loads(text + " ".join(layers) + " }").neuralnet, Phase.kTest, ["sum"])
    infos = {"x": RecordInfo((5,), 2)}
    assert create_net(net, Phase.kTest, infos).params.keys() == {"first_weight", "second_bias", "third_bias"}
