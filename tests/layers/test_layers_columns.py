"""The parts of a layer cut by features compute what the whole layer does; other layers say why they are not cut."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.errors import UserError
from dsinga.job import LayerConf, Phase
from dsinga.layers import Columns, Connection, Layer, Output, ParamSpec
from dsinga.layers.contract import make_part
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from dsinga.testing import LayerCase, LayerContract
from tests.support.layer_cases import CASES, FEED_FORWARD, context

CUT = [case for case in CASES if case.layer().connection is not None]
GATHERED = [case for case in CASES if case.layer().connection is None]

# The types that are never cut on dimension 1, whatever their configuration.
NEVER_CUT = {
    "kCRF", "kEntityF1", "kClassSoftmaxLoss", "kSampledLoss", "kOneHot", "kGRU", "kLSTM", "kRNN", "kCharRNN",
    "kRNNLabel", "kRNNDummy", "kCharRNNOutput",
    "kRecordInput", "kCSVInput", "kLMDBData", "kShardData", "kImagePreprocess", "kRGBImage", "kLabel", "kLRN",
    "kSoftmax", "kSoftmaxLoss", "kEuclideanLoss", "kAccuracy",
    "kArgSort", "kCSVOutput", "kRecordOutput", "kLayerNorm", "kSigmoidCrossEntropyLoss", "kHingeLoss",
    "kSequenceLength", "kPooling1D", "kConvolution1D", "kCosineSimilarity", "kRegressionError", "kConfusionMatrix",
    "kAttentionWeights", "kPolicyGradientLoss", "kPPOLoss", "kEntropyLoss",
    "kTDLoss", "kMeanLoss", "kLearnedVector", "kDueling", "kVTraceLoss",
}  # fmt: skip


def test_every_type_is_cut_or_is_known_to_be_gathered():
    assert {case.kind for case in CUT} == set(FEED_FORWARD) - NEVER_CUT


@pytest.mark.parametrize("case", GATHERED, ids=str)
def test_a_layer_that_is_not_cut_gives_a_reason(case: LayerCase):
    reason = case.layer().gathered_because
    assert re.fullmatch(r"[a-z]+s [a-z (),]+[a-z)]", reason), "a verb that follows 'because it', and no full stop"
    assert reason != Layer.gathered_because
    assert 15 <= len(reason) <= 60


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("kind", "field"), [("kSlice", "slice"), ("kConcate", "concate")])
def test_a_connection_layer_is_cut_along_every_axis_but_its_own(kind: str, field: str, axis: int):
    layer = LayerCase(kind, ((5, 4, 3),), {f"{field}_conf": {f"{field}_dim": axis}}).layer()
    assert (layer.connection is None) == (axis == 1)
    assert bool(layer.whole_because) == (axis == 0)


def widened(case: LayerCase, width: int) -> LayerCase:
    """Return the case with ``width`` columns, also in its sources where these are cut with the feature.

    A column of kAttention is a head of two features.
    """
    layer = case.layer()
    if layer.feature_groups:
        settings = {**case.conf["attention_conf"], "num_heads": width}
        shapes = tuple((*shape[:2], 2 * width) if len(shape) == 3 else shape for shape in case.shapes)
        return replace(case, shapes=shapes, conf={"attention_conf": settings})
    if layer.connection is Connection.kOneToOne:
        axis = layer.feature_axis
        return replace(case, shapes=tuple((*shape[:axis], width, *shape[axis + 1 :]) for shape in case.shapes))
    conf = layer.cut_conf(Columns(0, width, width))
    fields = {"kInnerProduct": "innerproduct_conf", "kDummy": "dummy_conf", "kEmbedding": "embedding_conf"}
    field = fields.get(case.kind, "convolution_conf")
    return replace(case, conf={**case.conf, field: getattr(conf, field)})


@st.composite
def cuts(draw: st.DrawFn) -> list[Columns]:
    """Draw 2 to 4 neighbouring parts of columns, which may be uneven."""
    width = draw(st.integers(2, 9))
    inner = draw(st.sets(st.integers(1, width - 1), min_size=1, max_size=3))
    return [Columns(start, stop, width) for start, stop in pairwise([0, *sorted(inner), width])]


@pytest.mark.parametrize("case", CUT, ids=str)
@settings(max_examples=4)
@given(columns=cuts())
def test_parts_of_a_layer_make_the_whole(case: LayerCase, columns: list[Columns]):
    """The contract cuts a layer in few ways, on every backend and in every phase."""
    case = widened(case, columns[0].total)
    each, remainder = divmod(case.layer().shape[case.layer().feature_axis], columns[0].total)
    assert not remainder
    columns = [Columns(*(each * bound for bound in part)) for part in columns]
    LayerContract().check_feature_cut(case, BACKENDS["numpy"](), Phase.kTrain, columns)


class Scale(Layer):
    """A user's layer with a factor for each column; subclasses declare a wrong cut."""

    connection = Connection.kOneToOne
    cut_axis = 0

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        self.params = (ParamSpec("factor", self.shape[1:], cut_axis=self.cut_axis),)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0] * params[0])


def test_a_users_layer_with_a_connection_is_cut():
    layer = Scale(LayerConf(name="mine", user_type="Scale"), [(4, 10)])
    part = make_part(layer, [(4, 3)], Columns(7, 10, 10))
    assert (part.shape, part.params[0].shape, part.columns) == ((4, 3), (3,), Columns(7, 10, 10))


def test_a_users_layer_that_is_cut_wrongly_is_refused():
    class Unchanged(Scale):
        connection = Connection.kOneToAll

    class Uncut(Scale):
        cut_axis = None

    class PerColumn(Scale):
        def __init__(self, conf, source_shapes, info=None):
            super().__init__(conf, source_shapes, info)
            self.params *= self.shape[1]

    conf = LayerConf(name="mine", user_type="Mine")
    with pytest.raises(UserError, match=r"layer 'mine': Unchanged.cut_conf must make 4 x 10 into 4 x 3, not 4 x 10"):
        make_part(Unchanged(conf, [(4, 10)]), [(4, 10)], Columns(7, 10, 10))
    with pytest.raises(
        UserError, match=r"layer 'mine': .*param 'factor', 10, .* must be 10, not 3; correct its cut_axis"
    ):
        make_part(Uncut(conf, [(4, 10)]), [(4, 3)], Columns(7, 10, 10))
    with pytest.raises(UserError, match=r"layer 'mine': PerColumn has 10 params, but 3 for 3 of 10 columns; make as"):
        make_part(PerColumn(conf, [(4, 10)]), [(4, 3)], Columns(7, 10, 10))


def test_a_users_layer_without_a_connection_is_gathered():
    class Plain(Layer):
        def compute_feature(self, params, sources, ctx):
            return Output(sources[0])

    assert Plain.connection is None
    assert Plain.gathered_because


def test_a_part_drops_the_units_that_the_whole_layer_drops():
    ops, x = BACKENDS["numpy"](), np.ones((5, 8, 2), np.float32)
    layer = lookup("layer", "kDropout")(LayerConf(name="drop", type="kDropout"), [x.shape])
    whole = layer.compute_feature([], [x], context(ops)).feature
    part = make_part(layer, [(5, 3, 2)], Columns(4, 7, 8)).compute_feature([], [x[:, 4:7]], context(ops)).feature
    assert np.array_equal(part, whole[:, 4:7])
    assert 0 < (part == 0).mean() < 1
