"""Datasets of the libraries themselves: each record is drawn anew in each epoch, in the same way for the same seed."""

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import open_records
from dsinga.data.sources.batch_sequences import say_once
from dsinga.data.sources.data_loaders import read_batches
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same

ROWS = 40
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
Y = np.arange(ROWS) % 3
DRAWN: list[tuple[int, float]] = []  # the number and the draw of each record that was made


def torch_data() -> Any:
    return pytest.importorskip("torch").utils.data


def hugging_face() -> Any:
    pytest.importorskip("torch")  # which it imports when it is asked for records
    pytest.importorskip("datasets.arrow_dataset")  # "datasets" alone may be the folder of a checkout
    return pytest.importorskip("datasets")


def changed(number: int) -> np.ndarray:
    """Return a record after a random change by each of the generators that people draw from."""
    draw = random.random() + np.random.rand()
    if torch := sys.modules.get("torch"):
        draw += torch.rand(()).item()
    DRAWN.append((number, draw))
    return X[number] + np.float32(0.1 * draw)


def of_torch() -> Any:
    class Noisy(torch_data().Dataset):
        tensors = "no tensors"  # which are TensorDataset's

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, number: int) -> Any:
            return changed(number), Y[number]

    return Noisy()


def of_loader() -> Any:
    return torch_data().DataLoader(of_torch(), batch_size=8, shuffle=True)


def of_subset() -> Any:
    return torch_data().Subset(of_torch(), range(ROWS))


def tensors() -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(X), torch.from_numpy(Y)


def of_tensors() -> Any:
    class Noisy(torch_data().TensorDataset):
        def __getitem__(self, number: int) -> Any:
            return changed(number), super().__getitem__(number)[1]

    return Noisy(*tensors())


def of_hugging_face() -> Any:
    def transform(batch: Any) -> Any:
        return {"x": [changed(number) for number in batch["number"]], "label": batch["label"]}

    return hugging_face().Dataset.from_dict({"number": np.arange(ROWS), "label": Y}).with_transform(transform)


def of_grain() -> Any:
    return pytest.importorskip("grain").MapDataset.source(of_torch())


class Batches:
    """The records as Keras's PyDataset has them, in an order that changes after each epoch."""

    def __init__(self, *further: np.ndarray):
        self.order, self.further, self.begun, self.ended = np.arange(ROWS), further, 0, 0

    def __len__(self) -> int:
        return ROWS // 8

    def __getitem__(self, number: int) -> Any:
        rows = self.order[8 * number :][:8]
        return np.stack([changed(row) for row in rows.tolist()]), Y[rows], *(each[rows] for each in self.further)

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1
        np.random.shuffle(self.order)


def of_joined_loader() -> Any:
    return torch_data().DataLoader(of_torch(), batch_size=8, shuffle=True, collate_fn=joined)


MAKERS = [of_torch, of_loader, of_joined_loader, of_subset, of_tensors, of_hugging_face, of_grain, Batches]


def net() -> nn.Sequential:
    model = nn.Sequential([nn.Input(4), nn.Dense(3)])
    model.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    return model


def trained(data: Any, *labels: Any, **arguments: Any) -> nn.Sequential:
    model = net()
    DRAWN.clear()
    model.fit(data, *labels, **{"batch_size": 8, "epochs": 3, "progress": False} | arguments)
    return model


def states() -> list[Any]:
    torch = sys.modules.get("torch")
    return [random.getstate(), np.random.get_state()[1].tolist(), torch and torch.get_rng_state().tolist()]


def test_a_step_takes_a_batch_of_a_sequence_of_batches():
    as_given, by_size = trained(Batches(), batch_size=None), trained(Batches())
    assert as_given.result.step == by_size.result.step == 3 * ROWS // 8
    assert_same(by_size.params, as_given.params)


@pytest.mark.parametrize("make", MAKERS)
def test_each_record_is_drawn_anew_in_each_epoch_and_as_before_for_the_same_seed(make: Any):
    data = make()
    before = states()
    model = trained(data, seed=1)
    drawn = DRAWN[-3 * ROWS :]  # before it the first ones, which say the shapes
    assert len(DRAWN) <= 3 * ROWS + 16
    for epoch in range(3):
        assert sorted(number for number, _ in drawn[epoch * ROWS :][:ROWS]) == list(range(ROWS))
    assert len({draw for _, draw in drawn}) == 3 * ROWS
    assert states() == before
    random.seed(2)  # what else draws does not matter, and neither do validation and predictions
    again, other = trained(make(), seed=1, validation_data=make()), trained(make(), seed=2)
    for name, array in model.params.items():
        np.testing.assert_array_equal(array, again.params[name])
        assert (array != other.params[name]).any()
    assert model.evaluate(make()) == again.evaluate(make())
    np.testing.assert_array_equal(model.predict(make()), again.predict(make()))


ON_CLUSTERS = [("threads", make) for make in MAKERS]
ON_CLUSTERS += [pytest.param("processes", each, marks=pytest.mark.ci) for each in (of_torch, of_hugging_face, Batches)]


@pytest.mark.parametrize(("client", "make"), ON_CLUSTERS, indirect=["client"])
def test_workers_draw_as_a_process_alone(make: Any, client: Any):
    alone, together = (trained(make(), seed=1, blocks=2, client=each) for each in (None, client))
    assert_same(together.params, alone.params)


@pytest.mark.ci
def test_kerass_own_class_is_shuffled_after_each_epoch(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("jax")
    keras = pytest.importorskip("keras")

    class Own(Batches, keras.utils.PyDataset):
        def __init__(self) -> None:
            keras.utils.PyDataset.__init__(self, workers=3)
            Batches.__init__(self)

    caplog.set_level("WARNING", "dsinga")
    own = Own()
    model, expected = trained(own), trained(Batches())
    assert_same(model.params, expected.params)
    assert (own.begun, own.ended) == (3, 3)
    assert "workers=3 of Own is not used" in caplog.text


def test_a_sequence_changes_its_order_after_each_epoch_and_has_weights():
    weights = np.linspace(0, 2, ROWS)
    data = Batches(weights)
    trained(data)
    assert (data.begun, data.ended) == (3, 3)
    numbers = [number for number, _ in DRAWN[-3 * ROWS :]]
    assert len({tuple(numbers[epoch * ROWS :][:8]) for epoch in range(3)}) == 3
    draws = open_records(Batches()).read(np.arange(ROWS))[0]  # of the first epoch, without seed
    model, arrays = net(), net()
    for each in (model, arrays):
        each.fit(X, Y, progress=False)
    figures = arrays.evaluate(draws, Y, sample_weight=weights)
    assert model.evaluate(Batches(weights))["loss"] == pytest.approx(figures["loss"], rel=1e-6)
    np.testing.assert_allclose(model.predict(Batches(weights)), arrays.predict(draws), rtol=1e-4, atol=1e-6)


def test_weights_count_in_training():
    weights = np.linspace(0, 2, ROWS)
    pure = np.random.default_rng(1).normal(size=(ROWS, 4))

    class Pure(Batches):
        def __getitem__(self, number: int) -> Any:
            return tuple(array[8 * number :][:8] for array in (pure, Y, weights))

    model, expected = trained(Pure(), batch_size=ROWS), trained(pure, Y, sample_weight=weights, batch_size=ROWS)
    assert_close(model.params, expected.params, 1e-4)


def joined(items: list[Any]) -> Any:
    """Return a batch, doubled, as a function of the user's joins records."""
    return np.stack([2 * x for x, _ in items]), np.array([y for _, y in items])


def test_a_loader_says_which_records_are_read_and_in_which_order():
    data, pairs = torch_data(), torch_data().TensorDataset(*tensors())
    half = open_records(data.DataLoader(pairs, batch_size=5, sampler=data.SubsetRandomSampler(range(20))))
    np.testing.assert_array_equal(half.read(np.arange(20))[0], X[:20])
    assert len(half) == 20
    in_pairs = data.BatchSampler(data.SubsetRandomSampler([7, 3]), 2, False)
    np.testing.assert_array_equal(open_records(data.DataLoader(pairs, batch_sampler=in_pairs)).read([1])[0], X[3:4])
    doubled = data.DataLoader(pairs, batch_size=8, collate_fn=joined)
    np.testing.assert_allclose(trained(X, Y).predict(doubled), trained(X, Y).predict(2 * X), rtol=1e-4, atol=1e-6)
    trained(data.DataLoader(of_torch(), batch_size=8))
    assert [number for number, _ in DRAWN[-3 * ROWS :]] == 3 * list(range(ROWS))


def test_samplers_of_the_users_choose_records_in_each_epoch():
    data, dataset, weights = torch_data(), of_torch(), [0.0] * 30 + [1.0] * 10
    loaders = {
        "weights": data.DataLoader(dataset, batch_size=8, sampler=data.WeightedRandomSampler(weights, 24)),
        "own": data.DataLoader(dataset, batch_size=8, sampler=[39, 38, 37, 36, 35, 34, 33, 32]),
        "in batches": data.DataLoader(dataset, batch_sampler=[[30, 31], [38, 39]]),
        "whole batches": data.DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True, collate_fn=joined),
    }
    counts = {"weights": (24, 10), "own": (8, 8), "in batches": (4, 4), "whole batches": (32, 0)}
    for name, loader in loaders.items():
        records, allowed = counts[name]
        first = trained(loader, batch_size=None)
        assert first.result.step == 3 * records // {"in batches": 2, "whole batches": 16}.get(name, 8)
        drawn = DRAWN[-3 * records :]
        epochs = [[number for number, _ in drawn[epoch * records :][:records]] for epoch in range(3)]
        assert not allowed or {number for epoch in epochs for number in epoch} <= set(range(30, 40))
        assert allowed or (epochs[0] != epochs[1] and all(len(set(epoch)) == 32 for epoch in epochs))
        assert len({draw for _, draw in drawn}) == len(drawn)
        random.seed(5)
        assert_same(trained(loader, batch_size=None).params, first.params)


def test_what_of_a_loader_is_not_used_is_said(caplog: Any):
    caplog.set_level("WARNING", "dsinga")
    say_once.cache_clear()
    data = torch_data()
    loader = data.DataLoader(of_torch(), batch_size=16, shuffle=True, num_workers=1)
    for _ in range(2):
        trained(loader, epochs=1)
    lines = [record.getMessage() for record in caplog.records if "dsinga.data" in record.name]
    assert lines == ["num_workers=1 of the DataLoader is not used: a thread reads records ahead"]


def test_streams_of_records_are_read_once_as_their_arrays(caplog: Any):
    class Stream(torch_data().IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            yield from zip(X, Y, strict=True)

        def __len__(self) -> int:
            return ROWS

    pairs = hugging_face().Dataset.from_dict({"x": X, "label": Y}).with_format("numpy")
    expected = trained(X, Y)
    say_once.cache_clear()
    caplog.set_level("WARNING", "dsinga")
    for stream in (Stream(), torch_data().DataLoader(Stream(), batch_size=8), pairs.to_iterable_dataset()):
        assert_same(trained(stream).params, expected.params)
    assert "the Stream is read once, into memory: what it draws at random stays the same in all epochs" in caplog.text
    refused(lambda: net().fit(torch_data().DataLoader(of_torch(), batch_size=None)), "DataLoader", r"\(x, y\) or")


def test_columns_of_hugging_face_go_by_their_names():
    module = hugging_face()
    features = module.Features(
        {
            "a": module.List(module.Value("float32")),
            "b": module.Value("int64"),
            "label": module.ClassLabel(names=["n", "o", "p"]),
        }
    )
    table = module.Dataset.from_dict({"a": X, "b": np.arange(ROWS), "label": Y}, features=features)
    rows = np.array([30, 2, 11])
    for data in (
        table.remove_columns("b"),
        table.with_format("torch", columns=["a", "label"]),
        table.select_columns(["label", "a"]),
    ):
        records = open_records(data)
        np.testing.assert_array_equal(records.read(rows)[0], X[rows])
        assert records.classes == ("n", "o", "p")
    np.testing.assert_array_equal(open_records(table, data="a", label="b").read(rows)[1], rows)
    refused(lambda: open_records(table), "have a, b, label", "leave one column")
    refused(lambda: net().fit(module.DatasetDict(train=table)), "DatasetDict", "give one of")


@pytest.mark.parametrize("end", [ValueError("no such file"), SystemExit(0)])
@pytest.mark.parametrize("workers", [None, 2])
def test_errors_of_a_dataset_name_the_record(end: BaseException, workers: int | None, threads: Any):
    class Broken(torch_data().Dataset):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, number: int) -> Any:
            if number == 17:
                raise end
            return X[number], Y[number]

    client = threads if workers else None
    loader = torch_data().DataLoader(Broken(), batch_size=4, collate_fn=torch_data().default_collate)
    broken = Broken()
    model = trained(X, Y)
    acts = (
        lambda: net().fit(broken, client=client, workers=workers, progress=False),
        lambda: model.evaluate(loader, client=client),
        lambda: model.predict(broken, client=client),
    )
    for act in acts:
        with pytest.raises(UserError, match=f"record 17 of the Broken cannot be read: {type(end).__name__}: ") as error:
            act()
        assert workers or error.value.__cause__ is end


def test_records_unlike_the_first_one_are_refused():
    class Ragged(torch_data().Dataset):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, number: int) -> Any:
            return X[number, : 4 - (number == 9)], Y[number]

    refused(lambda: net().fit(Ragged(), progress=False), "record 9 of the", r"first has \(4")


def broken() -> Iterator[Any]:
    yield X, Y
    raise ValueError("broken")


def test_what_takes_long_to_read_is_said(caplog: Any):
    caplog.set_level("WARNING", "dsinga")
    endless = ((X[:8], Y[:8]) for _ in range(3))
    read_batches(endless, silent_seconds=0)
    assert "generator is read into memory: 2 batches, 0 MiB, to its end; fit(steps_per_epoch=...) reads" in caplog.text
    refused(lambda: net().fit(broken()), "ValueError", "broken")
