"""Passes on a host that are recorded once: what is replayed on other numbers has the bits of calls, or is refused."""

import pytest

from dsinga.ops import Ops, get_ops
from dsinga.ops.compiled import joined_calls
from dsinga.testing import LayerCase
from tests.support.layer_cases import CASES
from tests.support.recorded_layers import refusal

# Layers that keep a metric's state, choose rows by their labels, or search for a path; their nets are called.
NOT_REPLAYED = (
    "kCTCLoss", "kCRF", "kClassSoftmaxLoss", "kSampledLoss", "kFieldError", "kForecastScores", "kReliability",
    "kEntityF1", "kGatheredMetrics", "kConfusionMatrix", "kRegressionError", "kSegmentationScore",
)  # fmt: skip
BY_LENGTH = ("kConvolution1D", "kGRU", "kLSTM", "kSimpleRNN", "kRNN")  # whose kernels compute the steps that there are


@pytest.fixture(autouse=True)
def joined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Join recorded calls in the first replay."""
    monkeypatch.setattr(joined_calls, "JOINED_AFTER", 0)


@pytest.fixture(scope="module")
def ops() -> Ops:
    ops = get_ops("onednn")
    if not ops.captures_passes:
        pytest.skip("there is no oneDNN")
    return ops


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_is_replayed(case: LayerCase, ops: Ops):
    reason = refusal(case, ops)
    if reason.startswith("sequences have different lengths"):
        assert str(case).startswith(BY_LENGTH)
    else:
        assert bool(reason) == str(case).startswith(NOT_REPLAYED), reason
