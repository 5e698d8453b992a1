"""Labels that are sent to another worker as a feature, and become labels there again."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers.contract import check_output
from dsinga.layers.label import FeatureAsLabels, Label, LabelsAsFeature
from dsinga.layers.loss import SoftmaxLoss
from dsinga.ops import BACKENDS
from dsinga.testing.layer_cases import read_only
from tests.support.layer_cases import BATCH, context

LABELS = read_only(np.array([3, 1, 4, 1, 5]))
CTX = context(BACKENDS["numpy"]())


def conf(name: str, source: str) -> LayerConf:
    return LayerConf(name=name, user_type="labels", srclayers=[source])


@pytest.mark.parametrize("labels", [LABELS, read_only(np.arange(BATCH * 3).reshape(BATCH, 3))], ids=["one", "a step"])
def test_labels_sent_as_a_feature_are_unchanged(labels: np.ndarray):
    out = LabelsAsFeature(conf("out", "data"), [labels.shape])
    back = FeatureAsLabels(conf("back", "out"), [out.shape])
    sent = out.compute_feature([], [labels], CTX)
    check_output(out, [], [labels], sent)
    received = back.compute_feature([], [sent.feature], CTX)
    check_output(back, [], [sent.feature], received)
    assert out.shape == back.shape == labels.shape
    assert sent.feature.dtype == np.int64
    assert np.array_equal(received.labels, labels)


def test_only_layers_that_make_labels_declare_it():
    assert FeatureAsLabels.makes_labels
    assert not LabelsAsFeature.makes_labels


def test_a_source_without_labels_is_refused_by_name():
    out = LabelsAsFeature(conf("out", "data"), [(BATCH, 2)])
    with pytest.raises(UserError, match="'data' has no labels"):
        out.compute_feature([], [None], CTX)


def test_labels_of_steps_are_refused_where_one_label_a_row_is_needed():
    loss = SoftmaxLoss(LayerConf(name="loss", srclayers=["ip", "words"]), [(2, 3), (2, 4)])
    with pytest.raises(
        UserError, match="'loss': takes one label a row, but .* each of 4 steps; give it per_step: true"
    ):
        loss.compute_feature([], [np.zeros((2, 3), np.float32), np.zeros((2, 4), np.int64)], CTX)


def test_labels_of_steps_need_no_label_layer():
    with pytest.raises(
        UserError, match="'label': makes one label a row, but 'words' has one for each of 4 steps; leave"
    ):
        Label(LayerConf(name="label", srclayers=["words"]), [(2, 4)]).compute_feature([], [np.zeros((2, 4))], CTX)
