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


# dsinga.plotting draws images, wrong predictions and a confusion matrix; what does not fit is refused.
LABELS = np.array([0, 1, 2, 2, 1])
PREDICTED = np.array([0, 2, 2, 1, 1])
SCORES = np.eye(3)[PREDICTED] * np.array([0.9, 0.6, 0.8, 0.7, 0.9])[:, None]
IMAGES = np.arange(5 * 4 * 4).reshape(5, 1, 4, 4)


def titles(axes: np.ndarray) -> list[str]:
    return [axis.get_title() for axis in axes.flat if axis.images]


def cells(axis: Any) -> dict[tuple[float, float], str]:
    """Return the texts in the cells of a picture by (row, column)."""
    return {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axis.texts}


def test_images_are_drawn_in_rows_on_the_same_scale():
    axes = plotting.images(IMAGES, [7, 8, 9], columns=3, cmap="gray_r")
    assert axes.shape == (2, 3)
    drawn = [axis.images[0] for axis in axes.flat if axis.images]
    assert [image.get_array().tolist() for image in drawn] == IMAGES[:, 0].tolist()
    assert {image.get_clim() for image in drawn} == {(0, 79)}
    assert {image.get_cmap().name for image in drawn} == {"gray_r"}
    assert titles(axes) == ["7", "8", "9", "", ""]


@pytest.mark.parametrize("scale", [1, 255])
def test_colours_come_from_channels_and_are_scaled_where_necessary(scale):
    images = np.random.default_rng(0).random((2, 3, 5, 4))
    images[0, 0, 0, 0], images[1, 0, 0, 0] = 0, 1
    drawn = plotting.images(images * scale)[0, 1].images[0].get_array()
    np.testing.assert_allclose(drawn, images[1].transpose(1, 2, 0))


def test_wrong_predictions_have_both_classes():
    axes = plotting.wrong_predictions(IMAGES, LABELS, PREDICTED)
    assert titles(axes) == ["1, not 2", "2, not 1"]
    assert axes[0, 0].images[0].get_array().tolist() == IMAGES[1, 0].tolist()


def test_the_surest_wrong_predictions_come_first():
    classes = ["cat", "dog", "rhinoceros"]
    axes = plotting.wrong_predictions(IMAGES, LABELS, SCORES, classes=classes, count=1)
    assert titles(axes) == ["rhinoceros\nnot dog\n0.70"]
    assert titles(plotting.wrong_predictions(IMAGES, LABELS, 10 * SCORES)) == ["2, not 1", "1, not 2"]


def test_no_wrong_prediction_is_said():
    axes = plotting.wrong_predictions(IMAGES, LABELS, LABELS)
    assert axes[0, 0].texts[0].get_text() == "no wrong prediction"


@pytest.mark.parametrize("predicted", [PREDICTED, SCORES])
def test_a_confusion_matrix_counts_the_predictions_of_each_class(predicted):
    axis = plotting.confusion_matrix(LABELS, predicted)
    assert cells(axis) == {(0, 0): "1", (1, 1): "1", (1, 2): "1", (2, 1): "1", (2, 2): "1"}
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1", "2"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted", "true")


def test_classes_with_names_and_given_axes():
    _, (left, right) = plt.subplots(1, 2)
    names = np.array(["ant", "bee", "cow"])
    assert plotting.confusion_matrix(names[LABELS], names[PREDICTED], ax=left) is left
    plotting.confusion_matrix(LABELS, PREDICTED, classes=["ant", "bee", "cow"], ax=right)
    assert cells(left) == cells(right)
    for axis in (left, right):
        assert [text.get_text() for text in axis.get_xticklabels()] == ["ant", "bee", "cow"]


@pytest.mark.parametrize("kind", [list, np.array])
def test_classes_order_names_as_they_are_given(kind):
    classes = kind(["cow", "ant", "bee"])
    names = np.array(["cow", "ant", "bee"])
    by_name = plotting.confusion_matrix(names[LABELS], names[PREDICTED], classes=classes)
    by_scores = plotting.confusion_matrix(names[LABELS], SCORES, classes=classes)
    assert cells(by_name) == cells(by_scores) == cells(plotting.confusion_matrix(LABELS, PREDICTED))
    assert [text.get_text() for text in by_name.get_xticklabels()] == ["cow", "ant", "bee"]


def test_a_colour_that_is_the_same_everywhere_is_drawn():
    assert not plotting.images(np.full((1, 3, 4, 4), 5.0))[0, 0].images[0].get_array().any()


def test_counts_of_many_classes_are_colours_only():
    numbers = np.arange(100)
    axis = plotting.confusion_matrix(numbers, numbers[::-1])
    assert not axis.texts
    assert axis.images[0].get_array().sum() == 100


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plotting.images(np.zeros((2, 5, 5, 3))), r"not of shape \(2, 5, 5, 3\); reshape it"),
        (lambda: plotting.images(np.zeros((0, 5, 5))), r"not of shape \(0, 5, 5\)"),
        (lambda: plotting.wrong_predictions(IMAGES[:4], LABELS, PREDICTED), "4 images and 5 labels"),
        (lambda: plotting.confusion_matrix(LABELS, SCORES[:3]), r"not of shapes \(5,\) and \(3, 3\)"),
        (lambda: plotting.confusion_matrix(np.eye(3)[LABELS], SCORES), r"labels must be class numbers \(N,\)"),
        (lambda: plotting.confusion_matrix(LABELS - 1, PREDICTED), "from -1 to 2"),
        (lambda: plotting.confusion_matrix(LABELS, PREDICTED, classes=["a", "b"]), "2 classes have names"),
        (
            lambda: plotting.confusion_matrix(["a", "b"], ["a", "c"], classes=["a", "b"]),
            "'c' is not among the classes; these are a, b$",
        ),
        (lambda: plotting.confusion_matrix([10**9], [1]), "numbered up to 1,000,000,000"),
        (lambda: plotting.wrong_predictions(IMAGES, LABELS, PREDICTED, count=0), "count is 0"),
        (lambda: plotting.images(IMAGES, columns=0), "columns is 0"),
        (lambda: plotting.images([np.zeros((2, 2)), np.zeros((3, 3))]), "images must have one size"),
        (lambda: plotting.confusion_matrix(np.array(["a"]), np.array([0])), "give both as class numbers, or as names"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    refused(lambda: call(), message)
