"""Functions of users as losses and layers: habits of those who know Keras, and what is refused."""

from pathlib import Path

import pytest

from tests.core.nn.test_nn_further_habits import habits_of, run_habit


@pytest.mark.parametrize("habit", habits_of("functions"))
def test_a_habit_of_keras_works_as_written(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_habit(habit, tmp_path, monkeypatch)
