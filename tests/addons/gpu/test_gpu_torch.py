"""Kernels and layers of GPUs compared with PyTorch's, by the tests of those of CPUs, where PyTorch is installed."""

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.testing.kernel_backend import KernelBackend
from tests.core.layers.test_layers_convlstm import assert_like_torch, case_of
from tests.core.ops.test_ops_torch import (  # noqa: F401
    test_convolutions_of_image_nets,
    test_grouped_and_dilated_convolutions,
    test_pooling_and_normalisation_of_image_nets,
    test_sums_over_many_rows_are_as_exact_as_pytorchs,
)
from tests.support import emulated_cupy

PARAMS = [
    pytest.param((load, dtype), id=f"{name}-{dtype.__name__}", marks=mark)
    for name, load, mark in (
        ("emulated", emulated_cupy.load, pytest.mark.slow),
        ("cupy", BACKENDS["cupy"], pytest.mark.gpu),
    )
    for dtype in (np.float32, np.float64)
]


@pytest.fixture(scope="module", params=PARAMS)
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    """One backend in one dtype."""
    return KernelBackend(*request.param)


@pytest.mark.slow
def test_a_convolutional_lstm_is_computed_on_an_emulated_device() -> None:
    case = case_of((2, 3, 2, 5, 6), num_filters=4, same=True)
    assert_like_torch(case, emulated_cupy.load(), 1, [1] * 4)
