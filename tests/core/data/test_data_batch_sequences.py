"""Sequences of batches, as Keras's PyDataset, are read as the array of all their records is."""

import pickle
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.data import open_records, write_store
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 4)).astype(np.float32)
Y = RNG.integers(3, size=70)


class InBatches:
    """What keras.utils.PyDataset has."""

    def __init__(self, *arrays: Any, size: int = 16):
        self.arrays, self.size, self.read = arrays, size, 0

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // self.size)

    def __getitem__(self, number: int) -> Any:
        self.read += 1
        parts = tuple(array[number * self.size : (number + 1) * self.size] for array in self.arrays)
        return parts if len(parts) > 1 else parts[0]

    def on_epoch_end(self) -> None:
        """Do nothing."""


def test_rows_of_any_batches_are_those_of_the_arrays():
    source = open_records(InBatches(X.astype(np.float64), Y))
    assert (len(source), source.shape, source.dtype, source.label_dtype) == (70, (4,), np.float32, np.int64)
    rows = np.array([69, 0, 17, 15, 16, 3])
    for each in (source, pickle.loads(pickle.dumps(source))):
        x, y = each.read(rows)
        np.testing.assert_array_equal(x, X[rows])
        np.testing.assert_array_equal(y, Y[rows])
    images = open_records(InBatches(RNG.integers(0, 255, (20, 3, 3, 1)).astype(np.uint8)))
    assert (images.dtype, images.has_labels) == (np.uint8, False)


def test_a_batch_is_read_once_for_records_and_labels():
    sequence = InBatches(X, Y)
    source = open_records(sequence)
    read = sequence.read
    source.read(np.arange(32, 48))
    assert sequence.read == read + 1


def test_a_model_trains_on_a_sequence():
    model, other = (nn.Sequential([nn.Input(4), nn.Dense(3)]) for _ in range(2))
    for each, data in ((model, (InBatches(X, Y),)), (other, (X, Y))):
        each.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
        each.fit(*data, batch_size=70, epochs=3, progress=False)
    for name, array in model.params.items():  # the order of records differs, which a batch of all of them sums up
        np.testing.assert_allclose(array, other.params[name], rtol=1e-4, atol=1e-6)


WRONG = {
    "no batches": (lambda: InBatches(X[:0]), "the InBatches has no batches"),
    "four parts": (lambda: InBatches(X, Y, Y, Y), r"must be arrays x, \(x, y\) or \(x, y, sample_weight\)"),
    "lengths": (
        lambda: InBatches(X, Y[:10]),
        r"must be arrays x, \(x, y\) or \(x, y, sample_weight\), of as many rows",
    ),
    "y as well": (lambda: (InBatches(X), Y), "the records of the InBatches have their labels; leave y out"),
    "a generator": (lambda: (batch for batch in InBatches(X, Y)), r"write_store\(path, batches\), and give the path"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sequence_of_batches_is_refused(name: str):
    make, message = WRONG[name]
    refused(lambda: open_records(make()), message)


def test_batches_of_several_lengths_are_refused_when_they_are_read():
    class Ragged(InBatches):
        def __getitem__(self, number: int) -> Any:
            return super().__getitem__(number)[: 16 - (number == 1)]

    refused(lambda: open_records(Ragged(X)).read(np.arange(20)), "batch 1 of the", "16 of 1")


def test_a_generator_is_read_from_a_store(tmp_path: Any):
    write_store(tmp_path / "train.zarr", (InBatches(X, Y)[number] for number in range(5)))
    x, y = open_records(tmp_path / "train.zarr").read(np.arange(70))
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
