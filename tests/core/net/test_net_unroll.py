"""Unrolling: SINGA's names and sources, params shared with copy 0, and errors."""

import pytest

from dsinga.job import JobError, LayerConf, NetConf, loads
from dsinga.net.unroll import unroll
from tests.support.net_cases import layer
from tests.support.refusals import refused


def unrolled(*layers: LayerConf, unroll_len: int = 3) -> dict[str, LayerConf]:
    conf = unroll(NetConf(layer=list(layers), unroll_len=unroll_len))
    return {layer_conf.name: layer_conf for layer_conf in conf.layer}


def gru(source: str, **more: object) -> LayerConf:
    return layer("gru", "kGRU", source, gru_conf={"dim_hidden": 20}, **more)


DATA = layer("data", "kRecordInput", unroll_len=1)
EMBEDDING = layer("embedding", "kDummy", "data", unroll_conn_type="kUnrollOneToAll")


def test_the_language_model_of_singas_unit_test():
    copies = unrolled(
        DATA,
        EMBEDDING,
        gru("embedding", param=[{"name": "w_z_hx"}, {"name": "w_r_hx"}]),
        layer("out", "kInnerProduct", "gru", innerproduct_conf={"num_output": 100}),
        layer(
            "loss", "kSoftmaxLoss", "out", "data", unroll_conn_type=["kUnrollOneToOne", "kUnrollOneToAll"]
        ),
    )  # fmt: skip
    kinds = ("embedding", "gru", "out", "loss")
    assert list(copies) == ["0#data", *(f"{step}#{kind}" for kind in kinds for step in range(3))]
    assert len(copies) == 13
    assert [copies[f"{step}#embedding"].srclayers for step in range(3)] == [["0#data"]] * 3
    assert copies["0#gru"].srclayers == ["0#embedding"]
    assert copies["1#gru"].srclayers == ["1#embedding", "0#gru"]
    assert copies["2#gru"].srclayers == ["2#embedding", "1#gru"]
    assert copies["2#loss"].srclayers == ["2#out", "0#data"]
    assert [copies[f"{step}#gru"].unroll_index for step in range(3)] == [0, 1, 2]
    # SINGA calls them 0#w_z_hx, ...: then nothing outside can share them.
    assert [param.name for param in copies["0#gru"].param] == ["w_z_hx", "w_r_hx"]
    assert [(param.name, param.share_from) for param in copies["2#gru"].param] == [
        ("2#w_z_hx", "w_z_hx"), ("2#w_r_hx", "w_r_hx")
    ]  # fmt: skip


def test_kinds_of_connection():
    copies = unrolled(
        layer("a", "kReLU"),
        layer("delayed", "kReLU", "a", shift=1),
        layer("all", "kConcate", "a", unroll_conn_type="kUnrollOneToAll"),
        layer("decoder", "kReLU", "a", unroll_conn_type="kUnrollFirstToLast"),
        layer("last", "kReLU", "a", unroll_conn_type="kUnrollFirstToLast", unroll_len=1),
    )
    assert [copies[f"{step}#delayed"].srclayers for step in range(3)] == [[], ["0#a"], ["1#a"]]
    assert copies["1#all"].srclayers == ["0#a", "1#a", "2#a"]
    assert [copies[f"{step}#decoder"].srclayers for step in range(3)] == [["2#a"], [], []]
    assert copies["0#last"].srclayers == ["2#a"]
    assert "1#last" not in copies


def test_a_net_that_is_not_unrolled_stays_as_it_is():
    conf = NetConf(layer=[DATA, layer("x", "kReLU", "data")])
    assert unroll(conf) is conf


def test_a_shared_param_is_shared_in_every_copy():
    copies = unrolled(layer("x", "kReLU", param=[{"name": "v", "share_from": "w"}]))
    assert [(copies[f"{step}#x"].param[0].name, copies[f"{step}#x"].param[0].share_from) for step in range(3)] == [
        ("v", "w"), ("1#v", "w"), ("2#v", "w")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kReLU\nsrclayers: "data"', "4: layer 'x': has 3 steps, but its source 'data' has 1; unroll_conn_type: kUn"),
        ('kReLU\nsrclayers: "two"', "4: layer 'x': has 3 steps, but its source 'two' has 2; give both one unroll_len"),
        ('kReLU srclayers: "all"\nshift: 3', "4: layer 'x': shift: 3 must be less than its 3 steps; else it never t"),
        ('kReLU srclayers: "data" unroll_conn_type: kUnrollOneToAll\nshift: 1', "4: layer 'x': shift has no effect"),
        ('kReLU srclayers: "data"\nunroll_conn_type: kUnrollCustomized', "4: layer 'x': kUnrollCustomized has no mean"),
        ("kRecordInput\nunroll_len: 2", "4: layer 'x' reads whole .*unroll_len: 1"),
    ],
)
def test_what_cannot_be_unrolled_is_refused_with_its_place(text, message):
    below = 'layer { name: "two" type: kReLU unroll_len: 2 } layer { name: "all" type: kReLU }'
    head = f'neuralnet {{ unroll_len: 3 {below}\nlayer {{ name: "data" type: kRecordInput unroll_len: 1 }}\n'
    net = loads(f'{head} layer {{ name: "x" type: {text} }} }}', "job.conf").neuralnet
    refused(lambda: unroll(net), f"job.conf:{message}")


def test_a_net_is_not_unrolled_to_more_layers_than_memory_could_hold():
    net = loads("neuralnet { unroll_len: 100000 layer { name: 'a' type: kReLU } }", "job.conf").neuralnet
    refused(lambda: unroll(net), "have 100,000 layers", "the net would", error=JobError)
