"""Merging unrolled copies: one layer over sequences computes the same; nets that stay unrolled."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.layers import RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.training import initial_values
from tests.support.merged_nets import assert_same_training, both, conf_of, run
from tests.support.net_cases import names, sources

STEPS, BATCH, VOCABULARY = 4, 5, 6
INFO = {"data": RecordInfo((STEPS,), BATCH)}

RECURRENT = """
unroll_len: 4
layer { name: "data" type: kRecordInput unroll_len: 1 store_conf { path: "x" batchsize: 5 } }
layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
  onehot_conf { vocab_size: 6 } }
layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 7 }
  param { name: "z" } param { name: "r" } }
layer { name: "drop" type: kDropout srclayers: "gru" dropout_conf { dropout_ratio: 0.3 } }
layer { name: "ip" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 6 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data"
  unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollOneToAll }
"""


def texts(rows: int = BATCH) -> dict[str, Records]:
    codes = np.random.default_rng(0).integers(0, VOCABULARY, (rows, STEPS + 1)).astype(np.uint8)
    return {"data": Records(codes[:, :-1], codes[:, -1])}


def test_a_merged_recurrent_net_trains_like_its_copies():
    merged, unrolled = both(RECURRENT, INFO)
    assert names(merged) == ["data", "onehot", "gru", "drop", "ip", "loss"]
    assert [node.layer.shape for node in merged.nodes] == [
        (5, 4), (5, 4, 6), (5, 4, 7), (5, 4, 7), (5, 4, 6), (5, 4, 6)
    ]  # fmt: skip
    assert len([name for name in names(unrolled) if "#" in name]) >= 5 * STEPS
    assert "data" in names(unrolled)
    assert list(merged.params) == [
        "z", "r", "gru_c_hx", "gru_z_hh", "gru_r_hh", "gru_c_hh", "gru_z_b", "gru_r_b", "gru_c_b",
        "ip_weight", "ip_bias",
    ]  # fmt: skip
    assert_same_training(merged, unrolled, texts())


def test_copies_of_a_simple_recurrent_layer_train_like_the_merged_one():
    text = RECURRENT.replace("kGRU", "kRNN").replace("gru_conf", "rnn_conf")
    assert_same_training(*both(text, INFO), texts())


TAGGER = """
layer { name: "words" type: kRecordInput store_conf { path: "x" batchsize: 3 } }
layer { name: "embed" type: kEmbedding srclayers: "words" unroll_len: 4 unroll_conn_type: kUnrollOneToAll
  embedding_conf { vocab_size: 6 feature_dim: 3 } }
layer { name: "ip" type: kInnerProduct srclayers: "embed" unroll_len: 4 innerproduct_conf { num_output: 5 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "words" unroll_len: 4
  unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollOneToAll }
"""


def test_steps_after_the_end_of_a_sequence_do_not_count():
    info = {"words": RecordInfo((4,), 3, label_shape=(4,))}
    net = create_net(conf_of(TAGGER), Phase.kTrain, info)
    rng = np.random.default_rng(1)
    words, labels = rng.integers(0, 6, (3, 4)).astype(np.int32), rng.integers(0, 5, (3, 4))
    ends = np.arange(4) >= np.array([4, 2, 1])[:, None]
    words[ends], labels[ends] = -1, -1
    metrics, gradients = run(net, {"words": Records(words, labels)})
    assert metrics["loss"][1] == metrics["accuracy"][1] == 7
    one_by_one = sum(
        run(net, {"words": Records(words[row : row + 1], labels[row : row + 1])}, Rows(row, row + 1, 3))[1]["ip_weight"]
        for row in range(3)
    )
    np.testing.assert_allclose(gradients["ip_weight"], one_by_one, rtol=1e-5, atol=1e-7)


def test_a_source_without_steps_goes_to_every_step():
    text = """
    layer { name: "data" type: kRecordInput store_conf { path: "x" batchsize: 3 } }
    layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 6 } }
    layer { name: "gate" type: kGRU srclayers: "steps" unroll_len: 4 gru_conf { dim_hidden: 6 } }
    layer { name: "steps" type: kInnerProduct srclayers: "ip" unroll_len: 4 unroll_conn_type: kUnrollOneToAll
      innerproduct_conf { num_output: 6 } }
    layer { name: "loss" type: kSoftmaxLoss srclayers: "gate" srclayers: "data" unroll_len: 4
      unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollOneToAll }
    """
    rng = np.random.default_rng(2)
    records = {"data": Records(rng.normal(size=(3, 8)).astype(np.float32), np.array([1, 5, 0]))}
    merged, unrolled = both(text, {"data": RecordInfo((8,), 3)})
    assert len(merged.nodes) == 5
    assert sources(merged, "steps") == ["ip"]
    assert_same_training(merged, unrolled, records)


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("a layer with a state", 'layer { name: "top" type: kBM srclayers: "gru" }'),
        ("a delay", 'layer { name: "top" type: kDummy srclayers: "gru" shift: 0 unroll_len: 3 }'),
        ("the last step alone", 'layer { name: "top" type: kReLU srclayers: "gru" unroll_len: 1 '
         "unroll_conn_type: kUnrollFirstToLast }"),
    ],
)  # fmt: skip
def test_a_net_that_cannot_be_merged_is_unrolled(what, more):
    net = create_net(conf_of(RECURRENT + more), Phase.kTrain, INFO)
    assert "3#gru" in names(net), what
    metrics, gradients = run(net, texts())
    assert metrics["loss"][1] == BATCH * STEPS
    assert gradients["ip_weight"].any()


def test_a_layer_over_sequences_says_why_it_gets_none():
    text = RECURRENT.replace("kGRU", "kLSTM").replace("gru_conf", "lstm_conf")
    with pytest.raises(UserError, match=r"'0#gru': takes whole sequences.*copy by copy, because layer 'top' keeps a"):
        create_net(conf_of(text + 'layer { name: "top" type: kBM srclayers: "gru" }'), Phase.kTrain, INFO)


def test_params_of_a_merged_net_are_initialised_like_those_of_its_copies():
    merged, unrolled = both(RECURRENT, INFO)
    merged_values, unrolled_values = initial_values(merged.params, 3), initial_values(unrolled.params, 3)
    assert merged_values.keys() == unrolled_values.keys()
    assert all((merged_values[name] == unrolled_values[name]).all() for name in merged_values)
