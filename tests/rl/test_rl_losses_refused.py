"""Losses of policies and values: configurations that are refused where the layer is made."""

from typing import Any

import pytest

from tests.core.layers.test_layers_refused import check_refused

STEPS, POLICY = (6, 7, 3), (6, 5)
STEP, VALUES = (6, 4), (6, 5, 1)  # of kVTraceLoss
GAUSSIAN = {"distribution": "kGaussian"}
REFUSED: list[tuple[str, dict[str, Any], list[tuple[int, ...]], list[str]]] = [
    ("kEntropyLoss", {}, [STEPS], ["takes a policy (batch, K), but 'data' gives 6 x 7 x 3"]),
    ("kEntropyLoss", {"entropyloss_conf": GAUSSIAN}, [POLICY], ["logs of standard deviations", "gives 5 numbers"]),
    ("kTDLoss", {}, [POLICY, (6, 1), (3, 1)], ["takes targets 6 x 1 from 'a', which gives 3 x 1"]),
    ("kPolicyGradientLoss", {}, [POLICY, (6, 1), POLICY], ["takes advantages 6 x 1 from 'a', which gives 6 x 5"]),
    (
        *("kVTraceLoss", {}, [(6, 5, 3), (6, 4, 1), *[STEP] * 4]),
        ["takes a policy (batch, T + 1, K) and values", "'more' 6 x 4 x 1", "per_step"],
    ),
    (
        *("kVTraceLoss", {}, [(6, 5, 3), VALUES, STEP, STEP, (6, 5), STEP]),
        ["takes 6 x 4 numbers from 'c', a step less", "but gets 6 x 5"],
    ),
    (
        *("kVTraceLoss", {"vtraceloss_conf": GAUSSIAN}, [(6, 5, 4), VALUES, (6, 4, 1), *[STEP] * 3]),
        ["4 numbers (kGaussian) has actions of 2, but 'a' gives 6"],
    ),
    (
        *("kVTraceLoss", {"vtraceloss_conf": GAUSSIAN}, [(6, 5, 3), VALUES, (6, 4, 2), *[STEP] * 3]),
        ["3 numbers (kGaussian) has actions of 1.5, but 'a' gives 6"],
    ),
    (
        *("kVTraceLoss", {}, [(6, 5, 3), VALUES, (6, 4, 2), *[STEP] * 3]),
        ["policy of 3 numbers (kCategorical) has actions of 1, but 'a' gives 6 x 4 x 2"],
    ),
]


@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_is_refused_where_the_layer_is_made(fault: tuple[Any, ...]):
    check_refused(*fault)
