"""History: the result of each kind of index, and the error for a wrong one."""

import pytest

from dsinga.monitor import History
from tests.support.refusals import refused

ROWS = [
    {"step": 0, "phase": "test", "loss": 2.3, "accuracy": 0.1},
    {"step": 0, "phase": "train", "loss": 2.2},
    {"step": 10, "phase": "train", "loss": 1.5},
    {"step": 10, "phase": "test", "loss": 1.4, "accuracy": 0.6},
]


@pytest.fixture
def history() -> History:
    return History(ROWS)


def test_a_row_is_indexed_like_a_list(history):
    assert history[0] is ROWS[0]
    assert history[-1] is ROWS[-1]
    assert list(history[1:3]) == ROWS[1:3]
    assert isinstance(history[1:3], History)
    assert len(history) == 4
    with pytest.raises(IndexError):
        history[4]


@pytest.mark.parametrize(
    ("index", "values"),
    [
        ((-1, "loss"), 1.4),
        ((slice(None), "loss"), [2.3, 2.2, 1.5, 1.4]),
        ((slice(1, 3), "step"), [0, 10]),
        ((slice(None), "accuracy"), [0.1, 0.6]),  # rows without the column are left out
        ((slice(None), ("step", "accuracy")), [(0, 0.1), (10, 0.6)]),
        ((-1, ("phase", "loss")), ("test", 1.4)),
    ],
)
def test_a_second_index_is_a_column_or_several(history, index, values):
    assert history[index] == values


def test_phase_filters(history):
    assert history.phase("train")[:, "loss"] == [2.2, 1.5]
    assert history.phase("test")[-1, "accuracy"] == 0.6
    assert len(history.phase("val")) == 0


@pytest.mark.parametrize("index", [(-1, "acuracy"), (slice(None), "acuracy")], ids=["row", "slice"])
def test_an_unknown_column_names_the_nearest(history, index):
    refused(lambda: history[index], "no column 'acuracy'; did you mean 'accuracy'", error=KeyError)


def test_columns_that_no_row_has_together_are_an_error(history):
    rows = History([{"step": 1, "loss": 1.0}, {"step": 2, "rate": 0.1}])
    refused(lambda: rows[:, ("loss", "rate")], "no row has all of loss, rate", error=KeyError)


def test_append_and_columns(history):
    assert (History()[:, "loss"], History().columns) == ([], ())
    history.append({"step": 20, "phase": "train", "rate": 0.1})
    assert history.columns == ("step", "phase", "loss", "accuracy", "rate")
    assert history[-1, "step"] == 20
    assert history != History(ROWS)


def test_a_selection_is_a_copy(history):
    history.phase("train").append({"step": 99})
    history[:].append({"step": 99})
    assert history == History(ROWS)


def test_repr_has_the_range_of_steps(history):
    assert repr(history) == "<History of 4 rows, steps 0 to 10>"
    assert repr(History()) == "<History of 0 rows>"


def test_the_values_of_a_metric_by_the_names_of_keras(history):
    assert history.history == {"test_loss": [2.3, 1.4], "test_accuracy": [0.1, 0.6], "loss": [2.2, 1.5]}
    assert History().history == {}
