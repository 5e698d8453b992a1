"""Context: the random numbers of a row do not depend on the worker that computes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.job import Phase, loads
from dsinga.layers import Rows
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
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


@pytest.mark.parametrize(("phase", "training"), [(Phase.kTrain, True), (Phase.kVal, False), (Phase.kTest, False)])
def test_only_the_training_phase_is_training(phase: Phase, training: bool):
    assert replace(CONTEXT, phase=phase).training == training


JOB = """
neuralnet {
  layer { name: "pool" type: kPooling
    srclayers: "data"
    pooling_conf {
      kernel: 9
    }
  }
}
"""


def test_an_error_names_file_and_line():
    """The line is that of the wrong field, or of the layer where the field is not known."""
    conf = loads(JOB, "job.conf").neuralnet.layer[0]
    with pytest.raises(ValueError, match=r"^job.conf:4: layer 'pool': takes 1 source layer, not 2"):
        lookup("layer", "kPooling")(conf, [(2, 3), (2, 3)])
    with pytest.raises(ValueError, match=r"^job.conf:6: layer 'pool': a kernel of 9 x 9 does not fit"):
        lookup("layer", "kPooling")(conf, [(2, 3, 5, 5)])
