"""kCRF: refused label sequences; KernelContract tests losses, gradients and decoding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.layers import Output
from dsinga.ops import BACKENDS
from tests.support.layer_cases import context, layer_of

OPS = BACKENDS["numpy"]()


def run(scores: np.ndarray, tags: Any) -> Output:
    params = [np.zeros((scores.shape[2],) * count, np.float32) for count in (2, 1)]
    return layer_of("kCRF", scores.shape, scores.shape[:2]).compute_feature(
        params, [scores, np.array(tags)], context(OPS)
    )


def test_without_transitions_each_step_is_a_softmax_of_its_own():
    output = run(np.zeros((2, 3, 4), np.float32), [[0, 3, -1], [2, 2, 2]])
    assert output.metrics["loss"] == (pytest.approx(5 * math.log(4)), 2)
    assert output.metrics["accuracy"] == (1, 5)
    assert output.feature.tolist() == [[0, 0, -1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([[0, 1], [0, 3]], r"row 1 .* a label that is none of its 3 classes \(0 to 2, or -1 after the end\): 3"),
        ([[0, -2], [0, 1]], r"row 0 .* a label that is none of its 3 classes .*: -2"),
        ([[-1, 1], [0, 1]], r"row 0 .* a label -1 before its last step.*: -1, 1"),
        ([[0, 1], [-1, -1]], r"row 1 .* no step at all.*leave sequences of length 0 out"),
        ([0, 1], r"a label for each of 2 steps, but gets labels of shape \(2,\)"),
    ],
)
def test_wrong_label_sequences_are_refused(tags: list, message: str):
    with pytest.raises(UserError, match=f"layer 'layer': .*{message}"):
        run(np.zeros((2, 2, 3), np.float32), tags)
