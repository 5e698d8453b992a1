"""Layers with per_step: they compute the same as unrolled copies, for sequences of any length."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import Phase, loads
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from dsinga.training import bp
from tests.support.net_cases import net_of
from tests.support.small_job import assert_same

ROWS, STEPS, TAGS = 4, 5, 3
INFO = RecordInfo((STEPS,), ROWS, label_range=(0, TAGS - 1), label_shape=(STEPS,))
WORDS = 'layer { name: "words" type: kRecordInput unroll_len: 1 store_conf { path: "x" } }'
TAGGER = """
layer { name: "embed" type: kEmbedding srclayers: "words" %s embedding_conf { vocab_size: 9 feature_dim: 4 } }
layer { name: "ip" type: kInnerProduct srclayers: "embed" %s innerproduct_conf { num_output: 3 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "words" %s }
"""
LABELS = "unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollOneToAll"


def sentences() -> dict[str, Records]:
    rng = np.random.default_rng(0)
    beyond = np.arange(STEPS) >= np.array([5, 1, 3, 2])[:, None]
    words = np.where(beyond, -1, rng.integers(0, 9, (ROWS, STEPS))).astype(np.int32)
    return {"words": Records(words, np.where(beyond, -1, rng.integers(0, TAGS, (ROWS, STEPS))))}


def values_of(net: NeuralNet) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.uniform(-1, 1, param.shape).astype(np.float32) for name, param in sorted(net.params.items())}


def train(net: NeuralNet):
    pushed: dict[str, np.ndarray] = {}
    ctx = Context(get_ops("numpy"), Phase.kTrain, Rows(0, ROWS, ROWS))
    return bp(net, values_of(net), sentences(), ctx, pushed.__setitem__), pushed


def test_per_step_computes_the_same_as_unrolling():
    stepwise = net_of(WORDS + TAGGER % ("", "per_step: true", "per_step: true"), words=INFO)
    unrolled = net_of(f"unroll_len: 5 {WORDS}" + TAGGER % ("unroll_conn_type: kUnrollOneToAll", "", LABELS), words=INFO)
    assert stepwise.layer("ip").shape == unrolled.layer("ip").shape == (ROWS, STEPS, TAGS)
    (metrics, gradients), (other_metrics, other_gradients) = train(stepwise), train(unrolled)
    assert metrics == other_metrics
    assert_same(gradients, other_gradients)


@pytest.mark.parametrize("merged", [True, False])
def test_per_step_changes_nothing_where_layers_are_unrolled(merged: bool):
    """Of two sources one has no steps, which only unrolling can tell."""
    text = """
    unroll_len: 5
    layer { name: "embed" type: kEmbedding srclayers: "words" unroll_conn_type: kUnrollOneToAll
      embedding_conf { vocab_size: 9 feature_dim: 4 } }
    layer { name: "bias" type: kDummy unroll_len: 1 dummy_conf { input: true shape: 4 shape: 4 } }
    layer { name: "sum" type: kAdd %s srclayers: "embed" srclayers: "bias"
      unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollOneToAll }
    """
    confs = [loads(f"neuralnet {{ {WORDS} {text % more} }}").neuralnet for more in ("", "per_step: true")]
    plain, stepwise = (create_net(conf, Phase.kTrain, {"words": INFO}, merged=merged) for conf in confs)
    assert [node.layer.shape for node in stepwise.nodes] == [node.layer.shape for node in plain.nodes]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ('type: kInnerProduct srclayers: "words" innerproduct_conf { num_output: 3 }', "takes 4 x 5; leave per_step"),
        ('type: kBM srclayers: "embed"', "layer 'one' keeps a state, .*cannot be computed per_step"),
        ("type: kDummy dummy_conf { input: true shape: 4 shape: 2 }", "has no source; leave per_step out"),
    ],
)
def test_a_layer_that_cannot_be_per_step_is_refused_with_its_place(layer: str, message: str):
    embed = TAGGER.splitlines()[1] % ""
    with pytest.raises(UserError, match=rf"job.conf:4: layer 'one'.*{message}|job.conf:4: .*{message}"):
        net_of(f'{WORDS}\n{embed}\nlayer {{ name: "one" per_step: true {layer} }}', words=INFO)
