"""Functions of users as losses and layers: habits of those who know Keras, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from dsinga import UserError, nn
from tests.core.nn.test_nn_further_habits import habits_of, run_habit
from tests.core.nn.test_nn_refusals import X, Y, model


@pytest.mark.parametrize("habit", habits_of("functions"))
def test_a_habit_of_keras_works_as_written(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_habit(habit, tmp_path, monkeypatch)


STATEMENTS = {
    "model(loss=lambda y, p: p > 0).fit(X, Y)": "; return floats",
    "model(loss=lambda y, p: float(p.mean())).fit(X, Y)": "builtins.float, of which no gradient is known; return an",
    "model(loss=lambda y, p: p.sum(-1) * p.max()).fit(X, Y)": "mixes the rows of a batch: what it returns for a row",
    "model(loss=lambda y, p: (p * 0).sum(0)).fit(X, Y)": "returns 3 for 4 rows; return an array whose first axis is",
    "model(loss=lambda y, p: y.none).fit(X, Y)": "fails for labels (4,), predictions (4, 3): AttributeError: '",
    "nn.Lambda(lambda x: x.numpy())(nn.Input(4))": "the function <lambda> fails for rows (4, 4) float32: ",
    "nn.Lambda(lambda x: x + np.random.normal(size=x.shape))(nn.Input(4))": "gives other numbers when it is called "
    "again for the same rows; give random numbers as an input of the model",
    "nn.Lambda(3)": "Lambda takes a function, not 3",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_wrong_statement_is_answered_in_one_sentence(statement: str):
    with pytest.raises(UserError) as error:
        exec(statement, {"nn": nn, "np": np, "model": model, "X": X, "Y": Y})
    assert STATEMENTS[statement] in str(error.value)
    assert len(str(error.value)) < 400
