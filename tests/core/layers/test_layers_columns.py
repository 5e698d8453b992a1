"""Layers that are not cut by features say why, and a user's layer that is cut wrongly is refused."""

import re

import pytest

from dsinga.cutting.layer_parts import make_part
from dsinga.job import LayerConf
from dsinga.layers import Columns, Connection, Cut, Layer, Output, ParamSpec
from dsinga.testing import LayerCase
from tests.support.layer_cases import CASES, FEED_FORWARD
from tests.support.refusals import refused

CUT = [case for case in CASES if case.layer().cut.connection is not None]
GATHERED = [case for case in CASES if case.layer().cut.connection is None]

# The types that are never cut on dimension 1, whatever their configuration.
NEVER_CUT = {
    "kCRF", "kEntityF1", "kClassSoftmaxLoss", "kSampledLoss", "kOneHot", "kGRU", "kLSTM", "kRNN", "kCharRNN",
    "kRNNLabel", "kRNNDummy", "kCharRNNOutput",
    "kRecordInput", "kCSVInput", "kLMDBData", "kShardData", "kImagePreprocess", "kRGBImage", "kLabel", "kLRN",
    "kSoftmax", "kSoftmaxLoss", "kEuclideanLoss", "kHuberLoss", "kAccuracy", "kReshape", "kPermute",
    "kRepeat", "kConvLSTM", "kIndex",
    "kArgSort", "kCSVOutput", "kRecordOutput", "kLayerNorm", "kRMSNorm", "kSigmoidCrossEntropyLoss", "kHingeLoss",
    "kSequenceLength", "kPooling1D", "kConvolution1D", "kCosineSimilarity", "kRegressionError", "kConfusionMatrix",
    "kAttentionWeights", "kPolicyGradientLoss", "kPPOLoss", "kEntropyLoss",
    "kTDLoss", "kMeanLoss", "kLearnedVector", "kDueling", "kVTraceLoss",
    "kAbsoluteLoss", "kFocalLoss", "kKLDivergenceLoss", "kCosineLoss", "kContrastiveLoss", "kTripletLoss", "kCTCLoss",
    "kGatheredMetrics", "kTopKAccuracy", "kPerplexity",
    "kFieldError", "kFieldSoftmaxLoss", "kDiceLoss", "kSegmentationScore",
    "kQuantileLoss", "kDistributionLoss", "kEnsembleLoss", "kDistributionParams", "kForecastScores", "kReliability",
    "kLeadRecord", "kMemberMean", "kMemberSoftmaxLoss", "kMemberSigmoidLoss", "kMemberEuclideanLoss", "kCategories",
    "kPiecewiseLinear", "kPeriodic",
}  # fmt: skip


def test_every_type_is_cut_or_is_known_to_be_gathered():
    assert {case.kind for case in CUT} == set(FEED_FORWARD) - NEVER_CUT


def test_layers_that_are_not_cut_give_a_reason():
    for case in GATHERED:
        reason = case.layer().cut.gathered_because
        assert re.fullmatch(r"[a-z]+s [a-z (),]+[a-z)]", reason), f"{case}: a verb after 'because it', no full stop"
        assert reason != Cut().gathered_because, case
        assert 15 <= len(reason) <= 60, case


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("kind", "field"), [("kSlice", "slice"), ("kConcate", "concate")])
def test_a_connection_layer_is_cut_along_every_axis_but_its_own(kind: str, field: str, axis: int):
    layer = LayerCase(kind, ((5, 4, 3),), {f"{field}_conf": {f"{field}_dim": axis}}).layer()
    assert (layer.cut.connection is None) == (axis == 1)
    assert bool(layer.cut.whole_because) == (axis == 0)


class Scale(Layer):
    """A user's layer with a factor for each column; subclasses declare a wrong cut."""

    cut = Cut(Connection.kOneToOne)
    cut_axis = 0

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("factor", self.shape[1:], cut_axis=self.cut_axis),)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0] * params[0])


def test_a_users_layer_that_is_cut_wrongly_is_refused():
    class Unchanged(Scale):
        cut = Cut(Connection.kOneToAll)

    class Uncut(Scale):
        cut_axis = None

    class PerColumn(Scale):
        def __init__(self, conf, source_shapes, info=None):
            super().__init__(conf, source_shapes, info)
            self.params *= self.shape[1]

    conf = LayerConf(name="mine", user_type="Mine")
    refused(
        lambda: make_part(Unchanged(conf, [(4, 10)]), [(4, 10)], Columns(7, 10, 10)), "'mine'", "cut_conf", "into 4 x 3"
    )
    refused(lambda: make_part(Uncut(conf, [(4, 10)]), [(4, 3)], Columns(7, 10, 10)), "'factor'", "correct its cut_axis")
    refused(lambda: make_part(PerColumn(conf, [(4, 10)]), [(4, 3)], Columns(7, 10, 10)), "PerColumn", "make as")
