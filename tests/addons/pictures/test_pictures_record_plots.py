"""dsinga.plotting draws images, wrong predictions and a confusion matrix; what does not fit is refused."""

from typing import Any

import numpy as np
import pytest

from dsinga import plotting
from tests.support.later_import import LaterImport
from tests.support.refusals import refused

plt = LaterImport("matplotlib.pyplot")

LABELS = np.array([0, 1, 2, 2, 1])
PREDICTED = np.array([0, 2, 2, 1, 1])
SCORES = np.eye(3)[PREDICTED] * np.array([0.9, 0.6, 0.8, 0.7, 0.9])[:, None]
IMAGES = np.arange(5 * 4 * 4).reshape(5, 1, 4, 4)


@pytest.fixture(autouse=True)
def closed_figures() -> Any:
    plt.switch_backend("agg")
    yield
    plt.close("all")


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
