"""Context: the random numbers of a row do not depend on the worker that computes it."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsinga.layers import Rows
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context

CONTEXT = context(BACKENDS["numpy"]())


@given(cut=st.integers(0, 20), columns=st.integers(1, 40))
def test_a_row_has_the_same_numbers_in_every_part(cut: int, columns: int):
    whole, first, second = (
        replace(CONTEXT, rows=Rows(start, stop, 20)).uniform("drop", columns)
        for start, stop in ((0, 20), (0, cut), (cut, 20))
    )
    assert whole.shape == (20, columns)
    assert np.array_equal(whole, np.concatenate([first, second]))


def test_random_numbers_are_uniform_and_differ_by_seed_step_layer_and_row():
    rows = Rows(0, 200, 200)
    contexts = [replace(CONTEXT, rows=rows, seed=seed, step=step) for seed in (0, 1) for step in (0, 1)]
    samples = np.stack([ctx.uniform(layer, 50) for ctx in contexts for layer in ("a", "b")])
    assert samples.dtype == np.float32
    assert 0 <= samples.min() < samples.max() < 1
    assert np.abs(np.quantile(samples, [0.25, 0.5, 0.75]) - [0.25, 0.5, 0.75]).max() < 0.01
    apart = np.corrcoef(samples.reshape(-1, 50 * 200)) - np.eye(8)
    assert np.abs(apart).max() < 0.05
    assert np.unique(samples).size > 0.99 * samples.size
