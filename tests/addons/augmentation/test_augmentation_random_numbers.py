"""Random numbers of records. Oracles: Random123's known answers of Philox4x32-10, scipy's beta distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.addons.augmentation.augmentation import _philox, stream_key, uniform
from dsinga.addons.augmentation.crops import symmetric_beta
from dsinga.addons.augmentation.images import normal

# kat_vectors of Random123 1.14: counter, key, result
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_words_are_those_of_random123(counter, key, expected):
    words = _philox(key, *(np.array([[word]], np.uint64) for word in counter))
    assert [int(word[0, 0]) for word in words] == list(expected)


@given(seed=st.integers(0, 2**64 - 1), start=st.integers(0, 2**40), columns=st.integers(1, 30))
def test_a_record_gets_the_same_numbers_in_any_batch(seed, start, columns):
    key, records, epochs = stream_key(seed, 2), start + np.arange(7), np.array([0, 0, 0, 1, 1, 2, 9])
    whole = uniform(key, records, epochs, columns)
    assert whole.shape == (7, columns)
    assert 0 < whole.min() <= whole.max() < 1
    np.testing.assert_array_equal(whole[4:6, :3], uniform(key, records[4:6], epochs[4:6], min(columns, 3)))
    assert len(np.unique(whole[:, 0])) == 7


def test_seeds_streams_and_epochs_have_numbers_of_their_own():
    records = np.arange(1000)
    columns = [
        uniform(stream_key(seed, stream), records, np.full(1000, epoch), 1)[:, 0]
        for seed in (0, 1)
        for stream in (0, 1)
        for epoch in (0, 1)
    ]
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlations).max() < 0.15
    assert np.abs(np.mean(columns, axis=1) - 0.5).max() < 0.05


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 1.0, 2.0, 8.0, 100.0])
def test_beta_is_scipys(alpha):
    stats = pytest.importorskip("scipy.stats")
    numbers = (np.arange(5000) + 0.5) / 5000
    np.testing.assert_allclose(symmetric_beta(numbers, alpha), stats.beta.ppf(numbers, alpha, alpha), atol=1e-7)


def test_normal_numbers_are_normal():
    stats = pytest.importorskip("scipy.stats")
    numbers = normal(uniform(stream_key(0, 0), np.arange(5000), np.zeros(5000), 4))
    assert numbers.shape == (5000, 4)
    assert min(stats.kstest(column, "norm").pvalue for column in numbers.T) > 0.01
    assert np.abs(np.corrcoef(numbers.T) - np.eye(4)).max() < 0.05
