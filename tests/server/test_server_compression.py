"""Codecs: what comes out stands for what went in, and what is left out comes later."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dsinga.job import Compression
from dsinga.server.compression import OneBit, TopK, create_codec

CODECS = {"one bit": OneBit, "a third": lambda: TopK(1 / 3), "one in a thousand": lambda: TopK(0.001)}
numbers = st.integers(-1000, 1000).map(lambda n: n / 8)
gradients = st.integers(1, 40).flatmap(lambda size: st.lists(arrays(np.float32, size, elements=numbers), min_size=1))


@pytest.mark.parametrize("codec", CODECS)
@given(steps=gradients)
def test_what_was_decoded_and_the_residual_add_up_to_what_was_encoded(codec, steps):
    made = CODECS[codec]()
    decoded = np.zeros(steps[0].size)
    for gradient in steps:
        before = gradient.copy()
        payload = made.encode(3, gradient)
        assert (payload.dtype, payload.ndim) == (np.uint8, 1)
        np.testing.assert_array_equal(gradient, before)
        found = made.decode(payload, gradient.size)
        assert (found.dtype, found.shape) == (np.float32, gradient.shape)
        decoded += found
    np.testing.assert_allclose(decoded + made.residuals[3], np.sum(steps, 0, np.float64), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_left_out_never_grows_without_end(codec):
    rng = np.random.default_rng(2)
    made = CODECS[codec]()
    largest = 0.0
    for step in range(3000):
        made.encode(0, rng.standard_normal(30, np.float32))
        if step == 300:
            largest = np.linalg.norm(made.residuals[0])
    assert np.linalg.norm(made.residuals[0]) < 10 * largest


def test_one_bit_sends_the_sign_and_the_means_of_either_side():
    codec = OneBit()
    payload = codec.encode(0, np.array([1, -2, 3, -4, 0, -6, 8, 0, 3], np.float32))
    assert payload.nbytes == 8 + 2
    np.testing.assert_array_equal(codec.decode(payload, 9), np.float32([2.5, -4, 2.5, -4, 2.5, -4, 2.5, 2.5, 2.5]))
    np.testing.assert_array_equal(codec.residuals[0], np.float32([-1.5, 2, 0.5, 0, -2.5, -2, 5.5, -2.5, 0.5]))
    # The next one is encoded together with what is left: -1.5 and 2 here, and nothing but that.
    again = codec.decode(codec.encode(0, np.zeros(9, np.float32)), 9)
    np.testing.assert_array_equal(np.sign(again), [-1, 1, 1, 1, -1, -1, 1, -1, 1])


@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_one_bit_is_exact_where_all_numbers_are_alike(value):
    codec = OneBit()
    given = np.full(11, value, np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(0, given), 11), given)
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


@pytest.mark.parametrize("codec", CODECS)
def test_slices_have_residuals_of_their_own_and_payloads_are_the_same_every_time(codec):
    rng = np.random.default_rng(4)
    steps = [rng.standard_normal((2, 50), np.float32) for _ in range(5)]
    alone, mixed = [CODECS[codec](), CODECS[codec]()], CODECS[codec]()
    for pair in steps:
        for id, gradient in enumerate(pair):
            payload = mixed.encode(id, gradient)
            np.testing.assert_array_equal(payload, alone[id].encode(id, gradient))


@pytest.mark.parametrize("codec", CODECS)
def test_payloads_may_begin_anywhere_and_be_read_only(codec):
    made = CODECS[codec]()
    payload = made.encode(0, np.arange(20, dtype=np.float32))
    received = np.frombuffer(b"x" + payload.tobytes(), np.uint8)[1:]
    np.testing.assert_array_equal(made.decode(received, 20), made.decode(payload, 20))


@pytest.mark.parametrize("codec", CODECS)
def test_a_gradient_that_is_not_finite_shows(codec):
    made = CODECS[codec]()
    found = made.decode(made.encode(0, np.float32([1, np.nan, np.inf, -1])), 4)
    assert not np.isfinite(found).all()


def test_the_job_says_which_codec():
    assert create_codec(Compression.kNone, 0.5) is None
    assert isinstance(create_codec(Compression.kOneBit, 0.5), OneBit)
    assert create_codec(Compression.kTopK, 0.5).encode(0, np.ones(4, np.float32)).nbytes == 16
