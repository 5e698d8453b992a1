"""The kind of the labels, one or several a row, integers or floats, is known throughout a net before training."""

import re

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import InnerProductConf, LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo, Records
from dsinga.net import NeuralNet, create_net
from dsinga.training import forward
from tests.support.partitioned_run import initial
from tests.support.refusals import refused
from tests.support.training_cases import context, dense, layer

ROWS = 6
KINDS = {
    "a class": RecordInfo((3,), ROWS),
    "a number": RecordInfo((3,), ROWS, label_dtype=np.float32),
    "a matrix of integers": RecordInfo((3,), ROWS, label_shape=(2,)),
    "a matrix of numbers": RecordInfo((3,), ROWS, label_shape=(2,), label_dtype=np.float32),
}
DATA = layer("data", "kRecordInput", store_conf={"path": "x", "batchsize": [ROWS]})


def net_of(info: RecordInfo, *layers: LayerConf) -> NeuralNet:
    return create_net(NetConf(layer=[DATA, *layers]), Phase.kTrain, {"data": info})


@pytest.mark.parametrize("info", KINDS.values(), ids=KINDS)
def test_layers_pass_on_the_kind_of_their_labels(info: RecordInfo):
    relu = layer("relu", "kReLU", "data")
    net = net_of(info, relu, layer("label", "kLabel", "relu"), layer("more", "kReLU", "label"))
    for name in ("data", "relu", "label", "more"):
        labels = net.nodes[net.position(name)].layer.label_format
        assert (labels.shape, labels.dtype) == (info.label_shape, np.dtype(info.label_dtype)), name
    assert net.nodes[net.position("label")].layer.shape == (ROWS, *info.label_shape)


@pytest.mark.parametrize("kind", ["kSoftmaxLoss", "kHingeLoss", "kAccuracy", "kClassSoftmaxLoss"])
def test_float_labels_are_refused_by_layers_that_take_classes(kind: str):
    words = {"vocab_size": 3, "class_start": [0]}
    loss = layer("loss", kind, "ip", "relu", classsoftmaxloss_conf=words)
    with pytest.raises(UserError, match="'relu'.*are float32"):
        net_of(KINDS["a number"], layer("relu", "kReLU", "data"), dense("ip", "data"), loss)


@pytest.mark.parametrize("kind", ["kSoftmaxLoss", "kHingeLoss", "kAccuracy"])
def test_matrices_are_refused_by_layers_that_take_one_label(kind: str):
    with pytest.raises(UserError, match="takes one label a row.*matrix, use kSigmoidCross"):
        net_of(KINDS["a matrix of integers"], dense("ip", "data"), layer("loss", kind, "ip", "data"))


def test_mistakes_are_named_with_their_remedies() -> None:
    with pytest.raises(UserError, match="'data'.*give labels: y"):
        net_of(
            RecordInfo((3,), ROWS, has_labels=False), dense("ip", "data"), layer("loss", "kSoftmaxLoss", "ip", "data")
        )
    layers = dense("ip", "data", 3), layer("label", "kLabel", "data"), layer("loss", "kEuclideanLoss", "ip", "label")
    refused(lambda: net_of(KINDS["a matrix of numbers"], *layers), "'label'", "give both as")
    net = net_of(KINDS["a class"], dense("ip", "data"), layer("loss", "kSoftmaxLoss", "ip", "data"))
    records = {"data": Records(np.ones((ROWS, 3), np.int32), np.zeros(ROWS, int))}
    refused(lambda: forward(net, initial(net, np.float32), records, context(net)), "'data'", "1 to have")


@pytest.mark.parametrize(
    ("sources", "values"),
    [
        (["ip", "ip2", "data"], "a kInnerProduct with per_step: true between"),
        (["ip", "data", "data"], r'srclayers: \["ip", "data"\]'),
    ],
)
def test_records_that_may_be_values_or_give_lengths_are_refused(sources: list[str], values: str):
    steps = RecordInfo((4, 3), ROWS, label_shape=(4,))
    below = [dense(name, "data").replace(per_step=True) for name in ("ip", "ip2")]
    below = [conf.replace(innerproduct_conf=InnerProductConf(num_output=3)) for conf in below]
    query, keys, last = sources
    lengths = f'srclayers: ["{query}", "{keys}", "{keys}", "{last}"]'
    with pytest.raises(UserError, match=f"'att': could .* 'data' .* write {re.escape(lengths)}, for values {values}"):
        net_of(steps, *below, layer("att", "kAttention", *sources))
    for allowed in ([query, keys, keys, last], [query, keys, "ip2"], [query, keys]):
        net = net_of(steps, *below, layer("att", "kAttention", *allowed))
        assert net.layer("att").labels.source == (3 if len(allowed) == 4 else None)
    for kind in ((), (3,)):  # labels that cannot be lengths of 4 keys
        net = net_of(RecordInfo((4, 3), ROWS, label_shape=kind), *below, layer("att", "kAttention", *sources))
        assert net.layer("att").has_values
