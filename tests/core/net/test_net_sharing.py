"""Names of params, and layers that share a param."""

import pytest

from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.layers import RecordInfo
from tests.support.net_cases import FLAT, build, dense, layer, net_of
from tests.support.refusals import refused

DATA = 'layer { name: "data" type: kRecordInput }\n'


def ip(name, source, params="", outputs=6, conf=""):
    return (
        f'layer {{ name: "{name}" type: kInnerProduct srclayers: "{source}"\n'
        f"innerproduct_conf {{ num_output: {outputs} {conf} }}\n{params} }}\n"
    )


def used(net):
    return {node.layer.name: node.params for node in net.nodes if node.params}


def test_params_without_a_name_are_called_after_layer_and_role():
    net = net_of(DATA + ip("a", "data", "param { lr_scale: 2 }") + ip("b", "a", 'param { name: "w" }'), data=FLAT)
    assert used(net) == {"a": ("a_weight", "a_bias"), "b": ("w", "b_bias")}
    assert [(param.lr_scale, param.wd_scale) for param in net.params.values()] == [(2, 1), (1, 1), (1, 1), (1, 1)]


def test_a_shared_param_is_its_owners_with_init_and_scales():
    net = net_of(
        DATA
        + ip("a", "data", 'param { name: "w" lr_scale: 3 init { type: kUniform } }')
        + ip("b", "a", 'param { name: "w2" share_from: "w" lr_scale: 7 }')
        + ip("c", "b", 'param { share_from: "w2" } param { share_from: "a_bias" }'),
        data=FLAT,
    )
    assert used(net) == {"a": ("w", "a_bias"), "b": ("w", "b_bias"), "c": ("w", "a_bias")}
    assert list(net.params) == ["w", "a_bias", "b_bias"]
    assert net.params["w"].lr_scale == 3
    assert net.params["w"].conf.init is not None


def test_the_owner_may_come_later_and_its_name_may_be_repeated():
    net = net_of(
        DATA + ip("a", "data", 'param { name: "w" share_from: "w" }') + ip("b", "a", 'param { name: "w" wd_scale: 5 }'),
        data=FLAT,
    )
    assert used(net) == {"a": ("w", "a_bias"), "b": ("w", "b_bias")}
    assert net.params["w"].wd_scale == 5


def test_the_owner_may_be_in_another_phase():
    """A decoder alone still uses the encoder's param, by name: its value is kept elsewhere."""
    net = net_of(
        'layer { name: "data" type: kRecordInput }'
        + ip("a", "data", 'param { name: "w" wd_scale: 4 } include: kTrain')
        + ip("b", "data", 'param { share_from: "w" } include: kTest'),
        Phase.kTest,
        data=FLAT,
    )
    assert used(net) == {"b": ("w", "b_bias")}
    assert net.params["w"].wd_scale == 4


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ('param { name: "v" share_from: "ww" }', r"job.conf:8: param 'v' of layer 'b': .*no such.*did you mean 'w'\?"),
        ('param { name: "v" share_from: "bias" }', r"job.conf:8: .*shape is \(2, 6\), but 'bias' of layer 'a'.*\(6,\)"),
        ('param { name: "v" share_from: "u" } param { name: "u" share_from: "v" }', "job.conf:8:.*circle: v -> u -> v"),
        ('param { name: "v" share_from: "v" }', r"job.conf:8: .*'v'.*no such param"),
        ('param { name: "bias" }', r"job.conf:8: param 'bias' of layer 'b': layer 'a' has a param of this name"),
        ("param { }\nparam { }\nparam { }", r"job.conf:10: layer 'b' .* has 2 \(weight, bias\), .* gives it 3"),
    ],
)
def test_wrong_params_are_refused_with_their_place(params, message):
    owner = ip("a", "data", 'param { name: "w" } param { name: "bias" }')
    refused(lambda: net_of(DATA + owner + ip("b", "a", params, 2), data=FLAT), message)


def test_mistakes_are_named_with_their_remedies() -> None:
    with pytest.raises(UserError, match=r"job.conf:8: .*\(2, 6\).*\(6, 2\); set transpose in its innerproduct_conf"):
        net_of(
            DATA + ip("a", "data", 'param { name: "w" }') + ip("b", "a", 'param { share_from: "w" }', 2),
            data=RecordInfo((2,), 4),
        )
    with pytest.raises(UserError, match=r"layer 'relu' \(kReLU\) has no params, but the job gives it 1"):
        build(layer("data", "kCSVInput"), layer("relu", "kReLU", "data", param=[{"name": "w"}]))
    with pytest.raises(UserError, match="'bn_scale'.*of its layer"):
        build(
            layer("data", "kCSVInput"),
            layer("bn", "kBM", "data", param=[{}, {}, {"name": "mean", "share_from": "bn_scale"}, {}]),
            dense("ip", "bn"),
        )
