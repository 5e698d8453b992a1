"""History.plot and dsinga.plotting.returns: which lines are drawn, with which values, on which axes."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsinga import plotting
from dsinga.base.errors import UserError
from dsinga.monitor import History
from tests.support.later_import import LaterImport
from tests.support.refusals import refused

plt = LaterImport("matplotlib.pyplot")

ROWS = [
    {"step": 10, "epoch": 1, "phase": "train", "time": 0.1, "accuracy": 0.5, "loss": 2.0},
    {"step": 10, "epoch": 1, "phase": "val", "time": 0.2, "accuracy": 0.4, "loss": 2.5},
    {"step": 20, "phase": "recovery", "lost": "tcp://a:1", "seconds": 1.5, "generation": 2},
    {"step": 20, "epoch": 2, "phase": "train", "time": 0.3, "accuracy": 0.7, "loss": 1.0},
    {"step": 20, "epoch": 2, "phase": "val", "time": 0.4, "accuracy": 0.6, "loss": 1.5, "confusion": [[1, 2], [3, 4]]},
]


@pytest.fixture(autouse=True)
def closed_figures() -> Any:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def lines(axis: Any) -> dict[str, list[tuple[float, float]]]:
    """Return the points of the lines of axes by label."""
    return {
        line.get_label(): list(zip(*(np.asarray(part).tolist() for part in line.get_data()), strict=True))
        for line in axis.get_lines()
    }


def test_all_metrics_are_drawn_with_a_line_for_each_phase():
    axes = History(ROWS).plot()
    assert [axis.get_ylabel() for axis in axes] == ["loss", "accuracy"]
    assert {axis.get_xlabel() for axis in axes} == {"step"}
    assert lines(axes[0]) == {"train": [(10, 2.0), (20, 1.0)], "val": [(10, 2.5), (20, 1.5)]}
    assert [text.get_text() for text in axes[1].get_legend().get_texts()] == ["train", "val"]


def test_a_name_gives_the_axes_of_one_metric_by_epochs():
    axis = History(ROWS).plot("accuracy", x="epoch")
    assert lines(axis) == {"train": [(1, 0.5), (2, 0.7)], "val": [(1, 0.4), (2, 0.6)]}
    assert axis.get_xlabel() == "epoch"
    assert len(axis.figure.axes) == 1


def test_histories_are_compared_on_the_same_axes():
    first = History(ROWS).phase("val").plot("loss", label="a", linestyle="--")
    second = History(ROWS).plot("loss", label="b", ax=first)
    assert second is first
    assert list(lines(first)) == ["a", "b, train", "b, val"]
    assert len({line.get_color() for line in first.get_lines()}) == 3
    assert first.get_lines()[0].get_linestyle() == "--"


def test_rows_of_estimators_have_the_validations_beside_the_training():
    rows = [
        {"epoch": 1, "step": 8, "loss": 1.5, "val_loss": 1.2},
        {"epoch": 2, "step": 15, "loss": 0.5, "val_loss": 0.9},
    ]
    history = History(rows)
    assert lines(history.plot("loss", x="epoch")) == {"train": [(1, 1.5), (2, 0.5)], "val": [(1, 1.2), (2, 0.9)]}
    assert history.history == {"loss": [1.5, 0.5], "val_loss": [1.2, 0.9]}
    assert ">train 0.5</text>" in history._repr_html_()


def test_many_metrics_fill_rows_of_axes():
    rows = [{"step": 1, "phase": "train", "loss": 1.0} | {f"m{k}": float(k) for k in range(4)}]
    axes = History(rows).plot()
    assert axes.shape == (5,)
    assert [axis.get_visible() for axis in axes[0].figure.axes] == [True] * 5 + [False]
    assert [line.get_marker() for line in axes[4].get_lines()] == ["."], "a line of one point is not seen"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": "acuracy"}, r"no metric 'acuracy'; did you mean 'accuracy'\? \(metrics: accuracy, loss\)"),
        ({"metrics": ["loss", "confusion"]}, "no metric 'confusion'"),
        ({"x": "epochs"}, "no column 'epochs'; did you mean 'epoch'"),
        ({"ax": "one"}, r"ax has 1 axes for 2 metrics \(loss, accuracy\); give axes for each"),
    ],
)
def test_what_cannot_be_drawn_is_named(arguments, message):
    if "ax" in arguments:
        arguments = {"ax": plt.subplots()[1]}
    refused(lambda: History(ROWS).plot(**arguments), message)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in (History(ROWS).plot, lambda: plotting.images(np.zeros((1, 2, 2)))):
        with pytest.raises(UserError, match=r"^drawing needs Matplotlib \(.*\): pip install 'dsinga\[plot\]'$"):
            draw()


RETURNS = [
    {"step": 100, "phase": "train", "time": 1.0, "loss": 3.0},
    {"step": 200, "phase": "train", "time": 2.0, "loss": 2.0, "episode_return": 20.0},
    {"step": 300, "phase": "train", "time": 3.0, "loss": 1.0, "episode_return": 30.0},
    {"step": 300, "phase": "test", "time": 3.5, "episode_return": 40.0},
]


def test_returns_of_an_agent_and_the_highest():
    result = SimpleNamespace(history=History(RETURNS))
    axis = plotting.returns(result, highest=500)
    drawn = lines(axis)
    assert drawn.pop("highest") == [(0, 500), (1, 500)]
    assert drawn == {"train": [(200, 20.0), (300, 30.0)], "test": [(300, 40.0)]}


def test_returns_of_several_agents_have_their_names():
    axis = plotting.returns({"PPO": History(RETURNS), "DQN": History(RETURNS).phase("train")})
    assert list(lines(axis)) == ["PPO, train", "PPO, test", "DQN"]


@pytest.mark.parametrize("given", [History(ROWS), {"PPO": History(RETURNS[:1])}, 3, [History(RETURNS)] * 2])
def test_a_history_without_returns_is_refused(given):
    refused(lambda: plotting.returns(given), "no returns of episodes", "give what rl")


def test_the_name_that_keras_gives_a_metric_is_answered_by_its_line():
    refused(lambda: History(ROWS).plot("val_loss"), "'val_loss'", "it is the")


def test_a_history_is_displayed_as_curves():
    assert History(ROWS)._repr_html_().startswith("<svg")
