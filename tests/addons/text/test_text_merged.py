"""Copies of a language model over a text, by step, merged into layers over sequences; its text is read by its steps."""

import numpy as np

from dsinga.job import loads
from dsinga.layers import RecordInfo, Records
from dsinga.net.unroll import unroll
from tests.support.merged_nets import assert_same_training, both
from tests.support.net_cases import names
from tests.support.refusals import refused

STEPS, BATCH, VOCABULARY = 4, 5, 6
INFO = {"data": RecordInfo((STEPS + 1,), BATCH, has_labels=False)}

LANGUAGE_MODEL = """
unroll_len: 4
layer { name: "data" type: kCharRNN unroll_len: 1 char_rnn_conf { path: "x" batchsize: 5 unroll_len: 4 } }
layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
  onehot_conf { vocab_size: 6 } }
layer { name: "label" type: kRNNLabel srclayers: "data" unroll_conn_type: kUnrollOneToAll }
layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 7 }
  param { name: "z" } param { name: "r" } }
layer { name: "drop" type: kDropout srclayers: "gru" dropout_conf { dropout_ratio: 0.3 } }
layer { name: "ip" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 6 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "label" }
"""


def texts(rows: int = BATCH) -> dict[str, Records]:
    return {"data": Records(np.random.default_rng(0).integers(0, VOCABULARY, (rows, STEPS + 1)).astype(np.uint8))}


def test_the_merged_language_model_trains_like_its_copies():
    merged, unrolled = both(LANGUAGE_MODEL, INFO)
    assert names(merged) == ["data", "onehot", "label", "gru", "drop", "ip", "loss"]
    assert [node.layer.shape for node in merged.nodes] == [
        (5, 5), (5, 4, 6), (5, 4), (5, 4, 7), (5, 4, 7), (5, 4, 6), (5, 4, 6)
    ]  # fmt: skip
    assert len([name for name in names(unrolled) if "#" in name]) >= 6 * STEPS
    assert "data" in names(unrolled)
    assert list(merged.params) == [
        "z", "r", "gru_c_hx", "gru_z_hh", "gru_r_hh", "gru_c_hh", "gru_z_b", "gru_r_b", "gru_c_b",
        "ip_weight", "ip_bias",
    ]  # fmt: skip
    assert_same_training(merged, unrolled, texts())


def test_a_text_of_another_number_of_steps_than_its_layers_is_refused_with_its_place():
    text = (
        'neuralnet { unroll_len: 3\nlayer { name: "data" type: kRecordInput unroll_len: 1 }\n'
        'layer { name: "t" type: kCharRNN unroll_len: 1 char_rnn_conf {\nunroll_len: 5 } }\n'
        'layer { name: "x" type: kOneHot srclayers: "t" unroll_conn_type: kUnrollOneToAll }\n}'
    )
    refused(lambda: unroll(loads(text, "job.conf").neuralnet), "conf:4: ", "5 characters", "'x' has 3")
