"""Labels that a loss of yes-or-no questions cannot have are refused in every form in which labels are given."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import write_store
from dsinga.estimators import Classifier
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype(np.float32)
RIGHT = np.arange(24) % 2
WRONG = {"three classes": np.arange(24) % 3, "signs": RIGHT * 2 - 1}


class Batches:
    """The records as Keras's PyDataset has them."""

    def __init__(self, labels: np.ndarray):
        self.labels = labels

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return X[number * 8 :][:8], self.labels[number * 8 :][:8]

    def on_epoch_end(self) -> None:
        """Do nothing."""


def stored(labels: np.ndarray, path) -> str:
    write_store(path, [(X, labels)])
    return str(path)


def path_of_labels(labels: np.ndarray, path) -> str:
    zarr.create_array(str(path), data=labels)
    return str(path)


FORMS = {
    "numpy": lambda labels, path: (X, labels),
    "dask": lambda labels, path: (da.from_array(X, chunks=8), da.from_array(labels, chunks=8)),
    "path of labels": lambda labels, path: (X, path_of_labels(labels, path)),
    "record store": lambda labels, path: stored(labels, path),
    "data frame": lambda labels, path: (pd.DataFrame(X), pd.Series(labels)),
    "batches": lambda labels, path: Batches(labels),
}


@pytest.mark.parametrize("loss", ["binary_crossentropy", "focal"])
@pytest.mark.parametrize("form", FORMS)
def test_answers_other_than_0_to_1_are_refused_in_every_form_and_phase(form, loss, tmp_path):
    model = nn.Sequential([nn.Input(4), nn.Dense(1)])
    model.compile("sgd", loss)

    def data(name: str, labels: np.ndarray) -> tuple:
        records = FORMS[form](labels, tmp_path / name)
        return records if isinstance(records, tuple) else (records, None)

    right = data("right", RIGHT)
    model.fit(*right, batch_size=8, progress=False)
    for name, labels in WRONG.items():
        wrong = data(name, labels)
        for act in (
            lambda: model.fit(*wrong, batch_size=8, progress=False),  # noqa: B023  called at once
            lambda: model.fit(*right, validation_data=wrong if wrong[1] is not None else wrong[0], progress=False),  # noqa: B023
            lambda: model.evaluate(*wrong),  # noqa: B023
        ):
            with pytest.raises(UserError, match="from 0 to 1, but .*(2|-1)"):
                act()


@pytest.mark.parametrize("form", FORMS)
def test_float_answers_have_precision_recall_and_f1(form, tmp_path):
    model = nn.Sequential([nn.Input(4), nn.Dense(1)])
    model.compile("sgd", "binary_crossentropy", metrics=["precision", "roc_auc"])
    answers = RIGHT.astype(np.float32)
    records = FORMS[form](answers, tmp_path / "data")
    tested = model.evaluate(X, RIGHT)
    assert model.evaluate(X, answers[:, None]) == tested  # as an array in this process
    model.fit(*(records if isinstance(records, tuple) else (records, None)), batch_size=8, progress=False)
    assert {"precision", "recall", "f1", "roc_auc"} <= model.result.history[0].keys()
    refused(lambda: model.evaluate(X, answers / 2), "'data'", "gives 0")


def test_a_list_of_batches_and_a_model_without_a_loss_say_what_to_give():
    model = nn.Sequential([nn.Input(4), nn.Dense(1)])
    refused(lambda: Classifier(model).fit(X, RIGHT), "the model has no loss", "call compile first")
    model.compile("sgd", "binary_crossentropy")
    batches = [(X[:8], RIGHT[:8]), (X[8:], RIGHT[8:])]
    for act in (model.fit, model.evaluate):
        with pytest.raises(UserError, match="'x' is a list of 2 pairs, such as batches .x, y.; give one"):
            act(batches)


@pytest.mark.parametrize("lazy", [False, True])
def test_classes_of_another_kind_than_in_the_first_call_are_refused(lazy: bool) -> None:
    matrix, column = (X[:, :3] > 0).astype(int), (X[:, 0] > 0).astype(int)
    convert = da.from_array if lazy else np.asarray
    for first, further, words in (
        (matrix, column, "a matrix of labels in one call and a column of classes in another"),
        (column, matrix, "a matrix of labels in one call and a column of classes in another"),
        (matrix, matrix[:, :2], "y has 2 columns, but had 3 in the first call"),
    ):
        classifier = Classifier(hidden=3, random_state=0).partial_fit(X, first)
        with pytest.raises(ValueError, match=words):
            classifier.partial_fit(convert(X), convert(further))
