"""Kernels in bfloat16 of the backend of GPUs, by the tests of those of CPUs: on an emulated device, and on a card."""

from typing import Any

import pytest

from dsinga.ops import BACKENDS
from tests.core.ops.test_ops_bf16 import (  # noqa: F401
    OnHost,
    test_a_mean_far_from_zero_does_not_hide_the_variance,
    test_a_product_is_computed_block_by_block_of_a_large_weight,
    test_attention,
    test_batch_normalisation,
    test_batch_normalisation_of_a_whole_batch,
    test_convolution,
    test_infinite_numbers_and_nan_stay,
    test_inner_product,
    test_local_response_normalisation,
    test_many_rows_are_multiplied_by_a_weight_that_is_rounded_whole,
    test_pooling,
    test_rectifiers_and_sums_keep_bfloat16,
    test_recurrent_layers_differ_from_float32_by_their_rounding,
    test_sums_of_an_odd_number_of_rows_are_right,
    test_the_same_numbers_give_the_same_bits_in_every_call,
)
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn


@pytest.fixture(scope="module", params=["cupy", pytest.param("card", marks=pytest.mark.gpu)])
def ops(request: Any) -> Any:
    backend = BACKENDS["cupy"]() if request.param == "card" else emulated_cupy.load(FakeCudnn())
    worker = backend.for_worker(0, "bf16")
    worker.enter()
    return OnHost(worker)
