"""Layers over steps, of fields and of array operations pass the contract on the cupy backend.

It is emulated on the CPU; that takes half a minute.
"""

import pytest

from dsinga.testing import LayerContract
from dsinga.testing import layer_parts as parts
from tests.support import emulated_cupy
from tests.support.layer_cases import CASES

pytestmark = pytest.mark.slow
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


class TestOnAnEmulatedDevice(LayerContract):
    backends = ["cupy"]
    cases = [case for case in CASES if case.kind in KINDS or case.variant.startswith(VARIANTS)]

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test on the emulated device in place of CuPy."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "load_backend", lambda name: emulated_cupy.load())
            super().pytest_generate_tests(metafunc)
