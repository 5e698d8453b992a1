"""kCRF: losses computed by hand, transitions that outweigh scores, and refused label sequences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dsinga.errors import UserError
from dsinga.job import LayerConf, Phase
from dsinga.layers import Layer, Output
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from tests.support.layer_cases import context

OPS = BACKENDS["numpy"]()


def crf(*shape: int) -> Layer:
    return lookup("layer", "kCRF")(LayerConf(name="crf", type="kCRF", srclayers=["ip", "data"]), [shape, shape[:2]])


def run(scores: Any, tags: Any, transitions: Any = 0.0, start: Any = 0.0, phase: Phase = Phase.kTest) -> Output:
    scores = np.array(scores, np.float32)
    count = scores.shape[2]
    params = [
        np.broadcast_to(np.float32(value), shape) for value, shape in ((transitions, (count,) * 2), (start, count))
    ]
    return crf(*scores.shape).compute_feature(params, [scores, np.array(tags)], context(OPS, phase))


def test_without_transitions_each_step_is_a_softmax_of_its_own():
    output = run(np.zeros((2, 3, 4)), [[0, 3, -1], [2, 2, 2]])
    assert output.metrics["loss"] == (pytest.approx(5 * math.log(4)), 2)
    assert output.metrics["accuracy"] == (1, 5)
    assert output.feature.tolist() == [[0, 0, -1], [0, 0, 0]]
    assert output.saved is None


def test_transitions_can_outweigh_the_scores_of_a_step():
    scores = [[[2, 0], [0, 1], [2, 0]]]
    assert run(scores, [[0, 1, 0]]).feature.tolist() == [[0, 1, 0]]
    assert run(scores, [[0, 1, 0]], transitions=[[1, 0], [0, 1]]).feature.tolist() == [[0, 0, 0]]
    assert run(scores, [[0, 1, 0]], start=[-9, 0]).feature.tolist() == [[1, 1, 0]]


def test_the_loss_is_that_of_a_sum_over_all_tag_sequences():
    """Two steps and two tags have four tag sequences, with the weights e^0, e^1, e^2 and e^(1 + 2)."""
    output = run([[[0, 1], [0, 2]]], [[1, 1]], phase=Phase.kTrain)
    assert output.metrics["loss"][0] == pytest.approx(math.log(1 + math.e + math.e**2 + math.e**3) - 3, rel=1e-6)


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
    with pytest.raises(UserError, match=f"layer 'crf': .*{message}"):
        run(np.zeros((2, 2, 3)), tags)


def test_a_source_without_steps_is_refused():
    with pytest.raises(UserError, match=r"layer 'crf': takes a score for each tag of each step .* 'ip' gives 5 x 12"):
        crf(5, 12)
