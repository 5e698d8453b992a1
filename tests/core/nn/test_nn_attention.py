"""Attention in the words of Keras: what each function writes, and agreement with PyTorch's multi-head attention."""

from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.job import LayerConf, Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import forward
from tests.support.refusals import refused

STEPS = (6, 8)


def written(model: Any) -> list[LayerConf]:
    return [conf for conf in model.job().neuralnet.layer if conf.type.name != "kRecordInput"]


def test_multi_head_attention_is_pytorchs():
    torch = pytest.importorskip("torch")
    query, keys = nn.Input((3, 8), name="query"), nn.Input((5, 8), name="keys")
    model = nn.Model([query, keys], nn.MultiHeadAttention(2, key_dim=4, name="mha")(query, keys))
    layers = model.job().neuralnet
    infos = {"query": RecordInfo((3, 8), 4, has_labels=False), "keys": RecordInfo((5, 8), 4, has_labels=False)}
    net, rng = create_net(layers, Phase.kTest, infos), np.random.default_rng(0)
    values = {name: rng.normal(size=param.shape).astype(np.float32) for name, param in net.params.items()}
    records = {name: Records(rng.normal(size=(4, *info.shape)).astype(np.float32)) for name, info in infos.items()}
    ctx = Context(get_ops("numpy"), Phase.kTest, Rows(0, 4, 4))
    ours = forward(net, values, records, ctx, ["mha"])[0]["mha"].feature
    peer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    roles = ("query", "key", "value")
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.tensor(np.concatenate([values[f"mha_{role}_weight"] for role in roles])))
        peer.in_proj_bias.copy_(torch.tensor(np.concatenate([values[f"mha_{role}_bias"] for role in roles])))
        peer.out_proj.weight.copy_(torch.tensor(values["mha_weight"]))
        peer.out_proj.bias.copy_(torch.tensor(values["mha_bias"]))
        x, y = (torch.tensor(records[name].data) for name in ("query", "keys"))
        theirs, _ = peer(x, y, y)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_multi_head_attention_writes_its_projections():
    words = nn.Input((6,), name="words")
    x = nn.Embedding(9, 8)(words)
    attend = nn.MultiHeadAttention(2, 4, value_dim=3, output_shape=5, use_causal_mask=True, partition_dim=1, name="a")
    query, key, value, heads, output = written(nn.Model(words, attend(x, x, words)))[1:]
    assert [conf.name for conf in (query, key, value, heads, output)] == ["a_query", "a_key", "a_value", "a_heads", "a"]
    sizes = [conf.innerproduct_conf.num_output for conf in (query, key, value, output)]
    assert sizes == [8, 8, 6, 5]
    assert all(conf.per_step for conf in (query, key, value, output))
    assert heads.srclayers == ["a_query", "a_key", "a_value", "words"]
    assert (heads.attention_conf.num_heads, heads.attention_conf.causal) == (2, True)
    assert {conf.partition_dim for conf in (query, key, value, heads, output)} == {1}


def test_a_further_call_shares_the_params():
    x = nn.Input(STEPS, name="x")
    attend = nn.MultiHeadAttention(2, 4, name="a")
    model = nn.Model(x, attend(attend(x, x), x))
    info = {"x": RecordInfo(STEPS, 4, has_labels=False)}
    net = create_net(model.job().neuralnet, Phase.kTest, info)
    assert sorted(net.params) == sorted(
        [f"a{role}_{kind}" for role in ("", "_query", "_key", "_value") for kind in ("bias", "weight")]
    )


def test_attention_takes_query_value_and_key_as_keras_does():
    query, value, key = (nn.Input(STEPS, name=name) for name in ("query", "value", "key"))
    words = nn.Input((6,), name="words")
    (conf,) = written(nn.Model([query, value, key], nn.Attention(name="a")(query, value, key)))
    assert conf.srclayers == ["query", "key", "value"]
    assert conf.attention_conf.score.name == "kDot"
    (conf,) = written(nn.Model([query, value, words], nn.Attention("additive", name="a")([query, value, words])))
    assert conf.srclayers == ["query", "value", "words"]
    assert len(conf.param) == 1


@pytest.mark.parametrize("attend", [nn.Attention(name="a"), nn.MultiHeadAttention(2, 4, name="a")])
def test_records_that_may_be_a_key_or_give_lengths_are_refused(attend: Any):
    steps = nn.Input(STEPS, name="steps")
    query, value = nn.Dense(8)(steps), nn.Dense(8)(steps)
    refused(lambda: nn.Model(steps, attend(query, value, steps)).job(), "'steps'", "for the key")
    for sources, lengths in (([query, value, value, steps], True), ([steps, steps, steps], False)):
        attention = next(conf for conf in written(nn.Model(steps, attend(*sources))) if conf.type.name == "kAttention")
        assert (attention.srclayers[-1] == "steps" and len(attention.srclayers) == 4) is lengths
