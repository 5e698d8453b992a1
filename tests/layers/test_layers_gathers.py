"""A fully connected layer that gathers activations: each worker computes the params' gradient over the whole batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dsinga.layers import Rows
from dsinga.ops import BACKENDS
from dsinga.testing import LayerCase
from dsinga.testing.layer_cases import read_only
from dsinga.testing.layer_passes import ThreadCollectives
from tests.support.layer_cases import BATCH, CASES, context

WAIT = 20.0  # seconds


@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 1, 4, 5), (0, 5)], ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case.kind == "kInnerProduct"], ids=str)
def test_each_part_computes_the_gradient_of_the_whole_batch(case: LayerCase, bounds: tuple[int, ...]):
    ops, layer = BACKENDS["numpy"](), case.layer()
    params, (source,) = case.inputs(ops, np.float32)
    grad = read_only(np.random.default_rng(1).uniform(-1, 1, layer.shape).astype(np.float32))
    whole = both_ways(layer, params, source, grad, context(ops))
    layer.gathers = True
    cuts = [Rows(start, stop, BATCH) for start, stop in pairwise(bounds)]
    collectives = ThreadCollectives(len(cuts))

    def run(part: int) -> Any:
        ctx = context(ops, rows=cuts[part], all_gather=collectives.of(part, np.concatenate))
        rows = slice(cuts[part].start, cuts[part].stop)
        return both_ways(layer, params, source[rows], grad[rows], ctx)

    with ThreadPoolExecutor(len(cuts)) as threads:
        parts = list(threads.map(run, range(len(cuts)), timeout=WAIT))
    np.testing.assert_allclose(np.concatenate([dx for (dx,), _ in parts]), whole[0][0], 1e-5, 1e-6)
    for _, for_params in parts:
        for gradient, expected in zip(for_params, whole[1], strict=True):
            assert np.array_equal(gradient, expected)


def both_ways(layer: Any, params: Any, source: Any, grad: Any, ctx: Any) -> Any:
    output = layer.compute_feature(params, [source], ctx)
    return layer.compute_gradient(params, [source], output, grad, [True], ctx)
