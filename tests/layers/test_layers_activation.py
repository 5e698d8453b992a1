"""Activations at points where their value is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from dsinga.job import LayerConf
from dsinga.ops import BACKENDS
from dsinga.registry import lookup
from tests.support.layer_cases import context

CONTEXT = context(BACKENDS["numpy"]())
POINTS = np.array([[-1000, -2, -1, -0.5, 0, 0.5, 1, 2, 1000]])


def values(kind: str, **conf: Any) -> np.ndarray:
    layer = lookup("layer", kind)(LayerConf(name="layer", type=kind, **conf), [POINTS.shape])
    return layer.compute_feature([], [POINTS], CONTEXT).feature


def test_stanh_has_the_constants_of_lecun():
    """f(1) = 1, and the limits are plus and minus the outer factor."""
    feature = values("kSTanh")[0]
    assert feature[6] == pytest.approx(1, abs=1e-4)
    assert feature[5] == pytest.approx(1.7159047 * math.tanh(1 / 3), rel=1e-8)
    assert feature[[0, 4, 8]].tolist() == [-1.7159047, 0, 1.7159047]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("RELU", "kReLU", np.maximum(POINTS, 0)),
        ("SIGMOID", "kSigmoid", special.expit(POINTS)),
        ("TANH", None, np.tanh(POINTS)),
        ("STANH", "kSTanh", 1.7159047 * np.tanh(0.66666667 * POINTS)),
    ],
)
def test_an_activation_by_name_is_the_layer_of_that_function(name: str, kind: str | None, expected: np.ndarray):
    feature = values("kActivation", activation_conf={"type": name})
    np.testing.assert_allclose(feature, expected, rtol=1e-12)
    if kind:
        assert np.array_equal(feature, values(kind))


def test_relu_is_the_default_activation():
    assert np.array_equal(values("kActivation"), values("kReLU"))


def test_a_negative_slope_is_applied():
    feature = values("kReLU", relu_conf={"negative_slope": 0.25})[0]
    assert feature.tolist() == [-250, -0.5, -0.25, -0.125, 0, 0.5, 1, 2, 1000]
