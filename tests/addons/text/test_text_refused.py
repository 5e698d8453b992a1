"""What ``text`` refuses: each mistake in a line, with the name and the remedy that its error must have."""

import re
from typing import Any

import pytest

import dsinga
from dsinga import models, nn
from dsinga.addons.text.vocabulary import encode
from dsinga.base.errors import UserError
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from dsinga.training import bleu
from tests.core.layers.test_layers_refused import check_refused
from tests.support.refusals import check_refusal, refusal
from tests.support.training_cases import layer

MISTAKES = [
    refusal(lambda: bleu(["a", "b"], ["a"]), "2 translations", "have 1 references"),
    refusal(lambda: bleu([], []), "no translations to measure", "give at least"),
    refusal(lambda: bleu("a b", "a b"), "translations must be a", "not one text"),
    refusal(lambda: bleu(["a"], [[]]), "'a' has an empty", "give at least"),
    refusal(
        lambda: nn.Sequential([nn.Input(4), nn.Dense(3)]).compile("sgd", nn.CRF), "CRF is a function", "call it: nn"
    ),
    refusal(lambda: dsinga.translate(models.mlp(), {}, ["a"]), "the net cannot translate", "two input layers"),
    refusal(lambda: encode("ab y c x y", ("ab", "c")), "2 words", "leave such out"),
    refusal(lambda: encode("ab y c x y", ("a", "b", " ")), "3 characters", "leave such out"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


# Layers for tags: what they refuse in their constructors, and of a net's labels.
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
