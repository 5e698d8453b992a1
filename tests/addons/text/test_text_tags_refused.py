"""Layers for tags: what they refuse in their constructors, and of a net's labels."""

import re
from typing import Any

import pytest

from dsinga.base.errors import UserError
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.core.layers.test_layers_refused import check_refused
from tests.support.training_cases import layer

ROWS = 6
DATA = layer("data", "kRecordInput", store_conf={"path": "x", "batchsize": [ROWS]})


def net_of(info: RecordInfo, *layers: LayerConf) -> NeuralNet:
    return create_net(NetConf(layer=[DATA, *layers]), Phase.kTrain, {"data": info})


@pytest.mark.parametrize("kind", ["kCRF", "kEntityF1"])
def test_labels_of_another_number_of_steps_are_refused(kind: str):
    for shape in ((), (5,)):
        info, wrong = RecordInfo((4, 3), ROWS, label_shape=shape), (ROWS, *shape)
        with pytest.raises(
            UserError, match=f"layer 'tags': takes a label for each of 4 steps, .* {re.escape(str(wrong))}"
        ):
            net_of(info, layer("relu", "kReLU", "data"), layer("tags", kind, "relu", "data"))


REFUSED: list[tuple[str, dict[str, Any], list[tuple[int, ...]], list[str]]] = [
    ("kCRF", {}, [(6, 12), (6,)], ["takes a score for each tag of each step", "'data' gives 6 x 12"]),
    ("kEntityF1", {}, [(6,), (6,)], ["takes tags", "'data' gives 6"]),
]


@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_is_refused_where_the_layer_is_made(fault: tuple[Any, ...]):
    check_refused(*fault)
