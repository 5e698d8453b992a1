"""Layers over steps, windows with uneven padding and kReshape pass the layer contract on an emulated cupy backend.

That takes half a minute.
"""

from __future__ import annotations

import pytest

from dsinga.testing import LayerContract
from dsinga.testing import layer_parts as parts
from tests.support import emulated_cupy
from tests.support.layer_cases import CASES

pytestmark = pytest.mark.slow
KINDS = ("kSequenceLength", "kConvolution1D", "kPooling1D", "kCosineSimilarity", "kEmbedding", "kReshape")


class TestOnAnEmulatedDevice(LayerContract):
    backends = ["cupy"]
    cases = [case for case in CASES if case.kind in KINDS or case.variant.startswith(("same", "uncounted"))]

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test on the emulated device in place of CuPy."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "load_backend", lambda name: emulated_cupy.load())
            super().pytest_generate_tests(metafunc)
