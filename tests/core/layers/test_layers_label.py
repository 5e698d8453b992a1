"""Labels that are sent to another worker as a feature, and become labels there again."""

import numpy as np
import pytest

from dsinga.cutting.bridges import FeatureAsLabels, LabelsAsFeature
from dsinga.job import LayerConf
from dsinga.layers.connection import join
from dsinga.layers.interface.contract import check_output
from dsinga.layers.losses.class_loss import SoftmaxLoss
from dsinga.layers.records.label import Label
from dsinga.ops import BACKENDS
from dsinga.testing.layer_cases import read_only
from tests.support.device_array import DeviceArray, StubOps
from tests.support.layer_cases import BATCH, context
from tests.support.refusals import refused

LABELS = read_only(np.array([3, 1, 4, 1, 5]))
CTX = context(BACKENDS["numpy"]())


def conf(name: str, source: str) -> LayerConf:
    return LayerConf(name=name, user_type="labels", srclayers=[source])


MATRIX = read_only(np.arange(BATCH * 3).reshape(BATCH, 3))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("labels", [LABELS, MATRIX], ids=["one", "several"])
def test_labels_sent_as_a_feature_are_unchanged(labels: np.ndarray, dtype: type):
    labels = read_only(labels.astype(dtype))
    out = LabelsAsFeature(conf("out", "data"), [labels.shape])
    back = FeatureAsLabels(conf("back", "out"), [out.shape])
    sent = out.compute_feature([], [labels], CTX)
    check_output(out, [], [labels], sent)
    received = back.compute_feature([], [sent.feature], CTX)
    check_output(back, [], [sent.feature], received)
    assert out.shape == back.shape == labels.shape
    assert received.labels.dtype == dtype
    assert np.array_equal(received.labels, labels)


@pytest.mark.parametrize(("dtype", "on_device"), [(np.float32, True), (np.int64, False)])
def test_float_labels_are_sent_from_a_device(dtype: type, on_device: bool):
    """A bridge puts the float features that it receives on the device, where a kConcate joins them with others."""
    ctx, labels = context(StubOps()), read_only(MATRIX.astype(dtype))
    sent = LabelsAsFeature(conf("out", "data"), [labels.shape]).compute_feature([], [labels], ctx).feature
    assert isinstance(sent, DeviceArray) == on_device
    joined = join([sent, sent], 0, ctx.ops)
    received = FeatureAsLabels(conf("back", "out"), [joined.shape]).compute_feature([], [joined], ctx)
    assert isinstance(received.labels, np.ndarray)
    assert np.array_equal(received.labels, np.concatenate([labels, labels]))


ONE_LABEL = "'loss': takes one label a row, but gets 4; .* steps .* per_step: true.* matrix, use kSigmoidCross"


def test_mistakes_are_named_with_their_remedies() -> None:
    conf = LayerConf(name="loss", srclayers=["ip", "words"])
    sources = [np.zeros((2, 3), np.float32), np.zeros((2, 4), int)]
    refused(lambda: SoftmaxLoss(conf, [(2, 3), (2,)]).compute_feature([], sources, CTX), ONE_LABEL)
    loss = SoftmaxLoss(LayerConf(name="loss", srclayers=["ip", "prices"]), [(2, 3), (2,)])
    sources = [np.zeros((2, 3), np.float32), np.zeros(2, np.float32)]
    refused(lambda: loss.compute_feature([], sources, CTX), "'loss'", "kEuclideanLoss with a")
    label = Label(LayerConf(name="label", srclayers=["data"]), [(2,)])
    refused(lambda: label.compute_feature([], [np.zeros((2, 3))], CTX), "'label'", "set new_la")


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 3)])
def test_labels_are_a_feature_of_their_shape(shape: tuple[int, ...], dtype: type):
    labels = read_only(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    output = Label(LayerConf(name="label", srclayers=["data"]), [shape]).compute_feature([], [labels], CTX)
    assert output.labels is labels
    assert output.feature.dtype == np.float32
    assert np.array_equal(output.feature, labels)
