"""Layers round what they declare to round in bfloat16: a kNothing has the bits of float32, a kProducts has others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsinga.layers.interface.declarations import Bfloat16
from dsinga.ops import Ops, get_ops
from dsinga.testing import LayerCase
from dsinga.testing.layer_parts import gradient_for
from dsinga.testing.layer_passes import layer_context, run_passes
from tests.support.layer_cases import CASES

pytestmark = pytest.mark.skipif(
    get_ops().name != "onednn" or bool(get_ops().lacks_bf16()), reason="the processor has no bfloat16"
)
# Whose products of few steps or rows, as in these cases, take float32 factors.
SHORT = ("kAttention", "kAttentionWeights", "kMemberDense")
DECLARED = {
    kind: {case.layer().bf16 for case in CASES if case.kind == kind}
    for kind in {case.kind for case in CASES}.difference(SHORT)
}


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Return the arrays in nested sequences."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays(item)


def bits(case: LayerCase, ops: Ops) -> list[bytes]:
    """Return the bytes of a layer's feature and gradients."""
    layer, (params, sources) = case.layer(), case.inputs(ops, np.float32)
    grad = gradient_for(case, params, sources, ops)
    passes = run_passes(layer, params, sources, layer_context(ops, case.batch), grad, case.needs())
    return [array.tobytes() for array in arrays((passes.output.feature, passes.for_sources, passes.for_params))]


@pytest.mark.parametrize("kind", sorted(kind for kind in DECLARED if DECLARED[kind] != {Bfloat16.kFeatures}))
def test_a_layer_rounds_factors_if_it_declares_so(kind: str) -> None:
    takes_float32 = (case for case in CASES if case.kind == kind and case.layer().bf16 is not Bfloat16.kFeatures)
    cases, ops = [*takes_float32], get_ops()
    rounds = any(bits(case, ops) != bits(case, ops.for_worker(precision="bf16")) for case in cases)
    assert rounds == (Bfloat16.kProducts in DECLARED[kind])
