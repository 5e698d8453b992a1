"""Batches from anywhere: generators, datasets by number, PyTorch's DataLoader, Hugging Face's and grain's datasets."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from tests.support.refusals import refused_with
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6)).astype(np.float32)
Y = np.arange(300) % 3


def net() -> nn.Sequential:
    made = nn.Sequential([nn.Input(6), nn.Dense(3)])
    made.compile(nn.Adam(0.01), "sparse_categorical_crossentropy")
    return made


def batches(size: int = 50, endless: bool = False, weights: bool = False) -> Iterator[Any]:
    while True:
        for start in range(0, 300, size):
            rows = slice(start, start + size)
            yield (X[rows], Y[rows], np.ones(len(X[rows]))) if weights else (X[rows], Y[rows])
        if not endless:
            return


class ByNumber:
    """A dataset with a length and an index, as PyTorch's Dataset."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class ByName(ByNumber):
    def __getitem__(self, index: int) -> Any:
        return {"label": Y[index], "pixels": X[index]}


def test_a_generator_trains_as_the_arrays_of_its_batches():
    expected = net()
    expected.fit(X, Y, epochs=3, batch_size=50, progress=False)
    assert expected.result.step == 18
    sources = ((batches(), None, None), (batches(endless=True), 6, None), (iter(list(batches(60))), None, 50))
    for source, steps, size in sources:  # the batches are those of the source, unless others are asked for
        model, given = net(), {"steps_per_epoch": steps, "batch_size": size}
        model.fit(source, epochs=3, validation_data=batches(100), progress=False, **given)
        assert_same(model.params, expected.params)
    assert model.evaluate(batches()) == expected.evaluate(X, Y)
    np.testing.assert_array_equal(model.predict(x for x, _ in batches()), expected.predict(X))
    weighted, all_ones = net(), net()
    weighted.fit(batches(weights=True), progress=False)
    all_ones.fit(X, Y, sample_weight=np.ones(300), batch_size=50, progress=False)
    assert_same(weighted.params, all_ones.params)


def libraries(name: str) -> Any:
    if name == "torch":
        torch = pytest.importorskip("torch")
        pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
        return torch.utils.data.DataLoader(pairs, batch_size=32, shuffle=True)
    if name == "datasets":
        module = pytest.importorskip("datasets.arrow_dataset")  # "datasets" alone may be the folder of this checkout
        return module.Dataset.from_dict({"x": X, "label": Y})
    if name == "grain":
        return pytest.importorskip(name).MapDataset.source(ByNumber())
    return ByName() if name == "dict" else ByNumber()


@pytest.mark.parametrize("name", ["pairs", "dict", "torch", "datasets", "grain"])
def test_records_by_number_are_read_again_shuffled_and_each_once_an_epoch(name: str):
    source = libraries(name)
    records = dsinga.data.open_records(source)
    x, y = records.read(np.arange(300)[::-1])
    np.testing.assert_array_equal(x, X[::-1])
    np.testing.assert_array_equal(y, Y[::-1])
    model, expected = net(), net()
    model.fit(source, epochs=2, batch_size=32, progress=False)
    expected.fit(InBlocks(), epochs=2, batch_size=32, progress=False)
    assert_same(model.params, expected.params)


class InBlocks:
    """The same as a sequence of batches, as Keras's PyDataset."""

    size = 256

    def __init__(self, *arrays: Any):
        self.arrays = arrays or (X, Y)

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // self.size)

    def __getitem__(self, number: int) -> Any:
        parts = tuple(array[self.size * number :][: self.size] for array in self.arrays)
        return parts if len(parts) > 1 else parts[0]

    def on_epoch_end(self) -> None:
        pass


class Ragged(InBlocks):
    size = 100

    def __getitem__(self, number: int) -> Any:
        return tuple(part[: 100 - (number == 1)] for part in super().__getitem__(number))


def test_rows_of_batches_without_labels_are_those_of_the_array():
    records, rows = dsinga.data.open_records(InBlocks(X.astype(np.float64))), np.array([299, 0, 256, 255, 3])
    assert (len(records), records.shape, records.dtype, records.has_labels) == (300, (6,), np.float32, False)
    np.testing.assert_array_equal(records.read(rows)[0], X[rows])


REFUSED = {
    "net().fit(InBlocks(X[:0]))": "the InBlocks has no batches",
    "dsinga.data.open_records((InBlocks(X), Y))": "the records of the InBlocks have their labels; leave y out",
    "dsinga.data.open_records(batches())": "write_store(path, batches), and give the path",
    "dsinga.data.open_records(Ragged()).read(np.arange(200))": "batch 1 of the sequence Ragged has 99 records",
    "net().fit(batches(), steps_per_epoch=7)": "the generator ended after 6 batches of 7; give steps_per_epoch=6",
    "net().fit(iter([]))": "the list_iterator ended after 0 batches; what gives its batches once is made anew",
    "net().fit(iter([(X, Y), (X[:, :2], Y)]))": "batch 1 of the list_iterator has records of the shapes [(2,), ()]",
    "net().fit(iter([(X, Y[:3])]))": "must be arrays x, (x, y) or (x, y, sample_weight), of as many rows",
    "net().fit(batches(), Y)": "the batches of the generator are (x, y) or (x, y, weights); leave y and weights out",
    "net().fit(X, Y, steps_per_epoch=3)": "steps_per_epoch is for batches of a generator: an epoch reads all records",
    "net().fit(iter([{'a': X, 'b': X}]))": "have a, b; leave one column of records, and one of labels that is called",
    "net().fit(iter([np.broadcast_to(np.float32(0), (1 << 40, 6))]))": "fewer of them in fit by steps_per_epoch",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_refused(statement: str):
    refused_with(lambda: eval(statement), REFUSED[statement])
