"""Codecs: decoded gradients and residuals add up to the encoded gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.cluster.server.compression import Bfloat16Codec, Integers, OneBit, TopK, create_codec
from dsinga.job import Compression

CODECS = {"one bit": OneBit, "a third": lambda: TopK(1 / 3), "one in a thousand": lambda: TopK(0.001)}
CODECS |= {"8 bits": lambda: Integers(8), "4 bits": lambda: Integers(4)}
ALL = CODECS | {"bfloat16": Bfloat16Codec}
numbers = st.integers(-1000, 1000).map(lambda n: n / 8)
gradients = st.integers(1, 40).flatmap(lambda size: st.lists(arrays(np.float32, size, elements=numbers), min_size=1))


@pytest.mark.parametrize("name", CODECS)
@given(steps=gradients)
def test_decoded_gradients_and_the_residual_add_up_to_the_gradients(name, steps):
    codec = CODECS[name]()
    decoded = np.zeros(steps[0].size)
    for gradient in steps:
        before = gradient.copy()
        payload = codec.encode(3, gradient)
        assert (payload.dtype, payload.ndim) == (np.uint8, 1)
        np.testing.assert_array_equal(gradient, before)
        restored = codec.decode(payload, gradient.size)
        assert (restored.dtype, restored.shape) == (np.float32, gradient.shape)
        decoded += restored
    np.testing.assert_allclose(decoded + codec.residuals[3], np.sum(steps, 0, np.float64), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", CODECS)
def test_the_residual_is_bounded(name):
    rng = np.random.default_rng(2)
    codec = CODECS[name]()
    largest = 0.0
    for step in range(3000):
        codec.encode(0, rng.standard_normal(30, np.float32))
        if step == 300:
            largest = np.linalg.norm(codec.residuals[0])
    assert np.linalg.norm(codec.residuals[0]) < 10 * largest


def test_one_bit_sends_signs_and_the_means_of_both_signs():
    codec = OneBit()
    payload = codec.encode(0, np.array([1, -2, 3, -4, 0, -6, 8, 0, 3], np.float32))
    assert payload.nbytes == 8 + 2
    np.testing.assert_array_equal(codec.decode(payload, 9), np.float32([2.5, -4, 2.5, -4, 2.5, -4, 2.5, 2.5, 2.5]))
    np.testing.assert_array_equal(codec.residuals[0], np.float32([-1.5, 2, 0.5, 0, -2.5, -2, 5.5, -2.5, 0.5]))
    # The residual is added to the next gradient, which is zero here.
    again = codec.decode(codec.encode(0, np.zeros(9, np.float32)), 9)
    np.testing.assert_array_equal(np.sign(again), [-1, 1, 1, 1, -1, -1, 1, -1, 1])


@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_one_bit_is_exact_for_equal_numbers(value):
    codec = OneBit()
    gradient = np.full(11, value, np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(0, gradient), 11), gradient)
    assert not codec.residuals[0].any()


def test_top_k_sends_the_largest_and_keeps_the_rest():
    codec = TopK(0.25)
    payload = codec.encode(0, np.array([1, -9, 3, 0, 0, 0, 0, 5], np.float32))
    assert payload.nbytes == 2 * 8
    np.testing.assert_array_equal(codec.decode(payload, 8), np.float32([0, -9, 0, 0, 0, 0, 0, 5]))
    np.testing.assert_array_equal(codec.residuals[0], np.float32([1, 0, 3, 0, 0, 0, 0, 0]))
    again = codec.decode(codec.encode(0, np.array([3, 0, 0.5, 1, 0, 0, 0, 0], np.float32)), 8)
    np.testing.assert_array_equal(again, np.float32([4, 0, 3.5, 0, 0, 0, 0, 0]))


@pytest.mark.parametrize(("share", "size", "sent"), [(0.01, 5, 1), (0.01, 101, 2), (1.0, 7, 7), (0.5, 1, 1)])
def test_top_k_sends_at_least_its_share(share, size, sent):
    assert TopK(share).encode(0, np.ones(size, np.float32)).nbytes == 8 * sent


@pytest.mark.parametrize("name", CODECS)
def test_slices_have_separate_residuals_and_payloads_are_deterministic(name):
    rng = np.random.default_rng(4)
    steps = [rng.standard_normal((2, 50), np.float32) for _ in range(5)]
    separate, mixed = [CODECS[name](), CODECS[name]()], CODECS[name]()
    for pair in steps:
        for id, gradient in enumerate(pair):
            payload = mixed.encode(id, gradient)
            np.testing.assert_array_equal(payload, separate[id].encode(id, gradient))


def test_bfloat16_rounds_to_the_nearest_and_keeps_nothing():
    codec = Bfloat16Codec()
    gradient = np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, -(2.0**-126), 0, 3.1])
    payload = codec.encode(0, gradient)
    assert payload.nbytes == 2 * gradient.size
    np.testing.assert_array_equal(codec.decode(payload, 6), np.float32([1, 1, 1 + 2**-6, -(2.0**-126), 0, 3.09375]))
    np.testing.assert_array_equal(codec.encode(0, gradient), payload)


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_are_the_nearest_multiples_of_the_scale_of_their_block(bits):
    codec, most = Integers(bits), 2 ** (bits - 1) - 1
    gradient = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    gradient[128:256] *= 1000
    payload = codec.encode(0, gradient)
    assert payload.nbytes == 3 * 4 + 384 * bits // 8
    decoded = codec.decode(payload, 300)
    for block in (slice(0, 128), slice(128, 256), slice(256, 300)):
        scale = abs(gradient[block]).max() / most
        np.testing.assert_allclose(decoded[block], np.rint(gradient[block] / scale) * scale, rtol=1e-5)
    whole = np.arange(-most, most + 1, dtype=np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(1, whole), whole.size), whole)


@pytest.mark.parametrize("name", ALL)
def test_payloads_may_be_unaligned_and_read_only(name):
    codec = ALL[name]()
    payload = codec.encode(0, np.arange(20, dtype=np.float32))
    received = np.frombuffer(b"x" + payload.tobytes(), np.uint8)[1:]
    np.testing.assert_array_equal(codec.decode(received, 20), codec.decode(payload, 20))


@pytest.mark.parametrize("name", ALL)
def test_a_gradient_that_is_not_finite_stays_so(name):
    codec = ALL[name]()
    restored = codec.decode(codec.encode(0, np.float32([1, np.nan, np.inf, -1])), 4)
    assert not np.isfinite(restored).all()


def test_the_codec_is_that_of_the_job():
    assert create_codec(Compression.kNone, 0.5) is None
    assert isinstance(create_codec(Compression.kOneBit, 0.5), OneBit)
    assert isinstance(create_codec(Compression.kBF16, 0.5), Bfloat16Codec)
    assert create_codec(Compression.kTopK, 0.5).encode(0, np.ones(4, np.float32)).nbytes == 16
