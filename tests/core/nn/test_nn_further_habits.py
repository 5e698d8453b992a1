"""Habits of those who know Keras, PyTorch and scikit-learn: most work as written, the others say what to write."""

from pathlib import Path

import pytest

from dsinga.nn.model.training_state import FIRST_SEED
from tests.core.nn import test_nn_habits
from tests.core.nn.test_nn_habits import run
from tests.support import keras_habits, library_habits
from tests.support.refusals import refused

HABITS = keras_habits.HABITS | library_habits.HABITS
# What the messages of the others say.
INSTEAD = {
    "recurrent dropout": "give the layer dropout=",
    "zoom and contrast": "write nn.augment.ColorJitter|compute it on the records",
    "label smoothing": "give fit shares of classes as labels",
    "U-Net": "leave it out, since the loss takes scores",
    "states of an LSTM": "there is none|return_state",
    "functional cross_entropy": "write loss=lambda labels, outputs",
    "nn.CrossEntropyLoss": "sparse_categorical_crossentropy",
    "accumulate_grad_batches": "give fit micro_batches=",
    "hidden_layer_sizes": "it is hidden",
    "module of an estimator": "from_torch",
}


def habits_of(addon: str) -> list[str]:
    """Return the habits that need an add-on, for its tests."""
    return [habit for habit, needed in keras_habits.ADDONS.items() if needed == addon]


def run_habit(habit: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a habit in a folder."""
    pytest.importorskip("torch")
    monkeypatch.chdir(folder)
    run((HABITS | test_nn_habits.HABITS)[habit])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    yield
    FIRST_SEED[0] = 0


@pytest.mark.parametrize(
    "habit",
    [
        pytest.param(habit, marks=[pytest.mark.ci] if habit in library_habits.HABITS else [])
        for habit in HABITS
        if habit not in INSTEAD and habit not in keras_habits.ADDONS
    ],
)
def test_a_habit_works_as_written(habit: str):
    run(HABITS[habit])


@pytest.mark.ci
@pytest.mark.parametrize("habit", INSTEAD)
def test_a_habit_is_refused_with_what_to_write(habit: str):
    refused(lambda: run(HABITS[habit]), INSTEAD[habit])
