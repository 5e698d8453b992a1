"""Layers pass the contract on the cupy backend: all on a card, those of steps and fields on an emulated one."""

import pytest

from dsinga.testing import LayerCase
from dsinga.testing.layer_cases import why_missing
from dsinga.testing.layer_parts import load_backend
from tests.core.layers.test_layers_contract import check
from tests.support import emulated_cupy
from tests.support.layer_cases import CASES

KINDS = (
    "kSequenceLength", "kConvolution1D", "kPooling1D", "kCosineSimilarity", "kEmbedding", "kReshape",
    "kAbsoluteLoss", "kFocalLoss", "kKLDivergenceLoss", "kCosineLoss", "kContrastiveLoss", "kTripletLoss", "kCTCLoss",
    "kPadding", "kCropping", "kUpsampling", "kTransposedConvolution", "kGroupNorm",
    "kFieldError", "kFieldSoftmaxLoss", "kDiceLoss", "kSegmentationScore",
    "kQuantileLoss", "kDistributionLoss", "kEnsembleLoss", "kDistributionParams", "kForecastScores", "kReliability",
    "kNormalization",
)  # fmt: skip
VARIANTS = (
    "same", "uncounted", "fields", "marked", "masked", "weighted points", "groups", "depthwise", "dilated", "spaced",
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_layer_keeps_the_contract_on_a_card(case: LayerCase) -> None:
    if reason := why_missing("cupy"):
        pytest.skip(reason)
    check(case, load_backend("cupy"))


@pytest.mark.ci
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kind in KINDS or case.variant.startswith(VARIANTS)], ids=str
)
def test_a_layer_keeps_the_contract_on_an_emulated_device(case: LayerCase) -> None:
    check(case, emulated_cupy.load())
