"""The passes of every layer, recorded once and launched again on other batches and steps, give the bits of calls.

The device is emulated. Between two launches nothing changes but the block of numbers and the buffers of the batch, so
that a number of the host which is baked into a launch shows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsinga.base.registry import lookup
from dsinga.job import LayerConf
from dsinga.layers import Layer, Output
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.ops import Ops
from dsinga.ops.types import NotCapturable
from dsinga.testing import LayerCase
from dsinga.testing.layer_passes import layer_context
from tests.support import emulated_cupy
from tests.support.layer_cases import CASES
from tests.support.recorded_layers import check, refusal
from tests.support.refusals import refused

# Layers whose host checks labels, reads features or chooses rows; the log says so, and their nets run eagerly.
NOT_CAPTURED = (
    "kHingeLoss", "kContrastiveLoss", "kCTCLoss", "kCRF", "kClassSoftmaxLoss", "kSampledLoss", "kFieldError",
    "kSegmentationScore", "kPolicyGradientLoss", "kPPOLoss", "kTDLoss", "kEntityF1", "kGatheredMetrics", "kPerplexity",
    "kForecastScores", "kReliability",
    "kConfusionMatrix", "kRegressionError", "kAccuracy", "kArgSort", "kEmbedding", "kCategories", "kSequenceLength",
    "kRNNDummy",
)  # fmt: skip
QUICK = ("kDropout", "kConvolution-stride", "kBM-rows", "kGRU-", "kSoftmaxLoss-top", "kRGBImage-crop", "kOneHot-seq")


@pytest.fixture
def ops() -> Iterator[Ops]:
    """A worker of the emulated device, in the calling thread."""
    shared = emulated_cupy.load()
    ops = shared.for_worker(0)
    ops.enter()
    yield ops
    shared.enter()


def may_be_refused(case: LayerCase, reason: str) -> bool:
    return str(case).startswith(NOT_CAPTURED) or "sequences have different lengths" in reason


@pytest.mark.parametrize("case", [case for case in CASES if str(case).startswith(QUICK)], ids=str)
def test_a_layer_is_launched_again(case: LayerCase, ops: Ops):
    reason = refusal(case, ops)
    assert not reason or may_be_refused(case, reason), reason


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_all_layers_are_launched_again(precision: str):
    shared = emulated_cupy.load()
    ops = shared.for_worker(0, precision)
    ops.enter()
    reasons = [(case, refusal(case, ops)) for case in CASES]
    assert not [(str(case), why) for case, why in reasons if why and not may_be_refused(case, why)]
    shared.enter()
    assert sum(not why for _, why in reasons) >= 294


def test_steps_after_the_end_of_a_sequence_are_refused_unless_they_show_in_the_loss(ops: Ops):
    """All steps are computed in a recorded pass: with a label of -1 a loss is NaN, where others would be wrong."""
    conf = LayerConf(name="layer", type="kLabel")
    layer = TimeDistributed(lookup("layer", "kLabel"), conf, [(5, 4)], 4, [False])
    labels = ops.asarray(np.full((5, 4), -1))
    with pytest.raises(NotCapturable, match="sequences have different lengths"):
        layer.compute_feature([], [labels], layer_context(ops, 5, unread=[]))


def test_a_number_of_the_host_is_found(ops: Ops):
    class Baked(Layer):
        """Multiplies by the mean of its source, a number that the host reads."""

        def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
            return Output(sources[0] * float(np.asarray(sources[0]).mean()))

    case = LayerCase("kDummy", ((5, 3),), {"dummy_conf": {"output": True}})
    layer = Baked(LayerConf(name="layer", type="kDummy"), case.shapes)
    refused(lambda: check(case, ops, layer), "step 0", error=AssertionError)
