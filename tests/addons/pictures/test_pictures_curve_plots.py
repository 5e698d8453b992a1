"""ROC curves and precision by recall have scikit-learn's points; a confusion matrix is drawn from evaluate's counts."""

from typing import Any

import numpy as np
import pytest

from dsinga import plotting
from tests.support.later_import import LaterImport
from tests.support.refusals import check_refusal, refusal

plt = LaterImport("matplotlib.pyplot")
measures = LaterImport("sklearn.metrics")

RNG = np.random.default_rng(0)
LABELS = RNG.permutation(60) % 3
SCORES = RNG.dirichlet(np.ones(3), 60).round(1)  # with ties


@pytest.fixture(autouse=True)
def closed_figures() -> Any:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def legend(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_a_roc_curve_has_the_points_and_the_area_of_scikit_learn():
    answers, scores = LABELS == 1, SCORES[:, 1]
    axis = plotting.roc_curve(answers.astype(int), scores)
    false_alarms, right_alarms, _ = measures.roc_curve(answers, scores, drop_intermediate=False)
    np.testing.assert_allclose(axis.lines[0].get_xydata(), np.stack([false_alarms, right_alarms], axis=1))
    assert legend(axis) == [f"{measures.roc_auc_score(answers, scores):.3f}"]


def test_precision_by_recall_has_the_points_of_scikit_learn():
    answers, scores = LABELS == 1, SCORES[:, 1:2]
    axis = plotting.precision_recall_curve(answers.astype(int), scores)
    precision, recall, _ = measures.precision_recall_curve(answers, scores)
    points = axis.lines[0].get_xydata()[1:]
    expected = np.stack([recall, precision], axis=1)[:-1][::-1]
    np.testing.assert_allclose(points, expected)
    assert legend(axis) == [f"{measures.average_precision_score(answers, scores):.3f}"]


def test_several_classes_have_a_curve_each_with_their_names():
    axis = plotting.roc_curve(LABELS, SCORES, classes=["a", "b", "c"], linewidth=3)
    areas = [measures.roc_auc_score(LABELS == k, SCORES[:, k]) for k in range(3)]
    assert legend(axis) == [f"{name}: {area:.3f}" for name, area in zip("abc", areas, strict=True)]
    assert {line.get_linewidth() for line in axis.lines[:3]} == {3}
    assert plotting.precision_recall_curve(LABELS, SCORES, ax=axis) is axis


def test_of_two_classes_the_second_is_drawn():
    scores = np.stack([1 - SCORES[:, 0], SCORES[:, 0]], axis=1)
    axis = plotting.roc_curve((LABELS == 0).astype(int), scores, classes=["no", "yes"])
    assert legend(axis) == [f"yes: {measures.roc_auc_score(LABELS == 0, SCORES[:, 0]):.3f}"]


def test_a_confusion_matrix_of_counts():
    counts = measures.confusion_matrix(LABELS, SCORES.argmax(axis=1)).tolist()
    axis = plotting.confusion_matrix({"loss": 1.0, "confusion": counts}, classes=["a", "b", "c"])
    same = plotting.confusion_matrix(LABELS, SCORES, classes=["a", "b", "c"])
    assert [text.get_text() for text in axis.texts] == [text.get_text() for text in same.texts]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["a", "b", "c"]
    assert len(plotting.confusion_matrix(counts).texts) == len(same.texts)


MISTAKES = [
    refusal(lambda: plotting.roc_curve(LABELS[:5], SCORES), "as many labels as", "and (60, 3"),
    refusal(lambda: plotting.roc_curve(np.zeros(60, int), SCORES), "all records have one", "answer for '0'"),
    refusal(lambda: plotting.roc_curve(LABELS, SCORES[:, :1]), "but there is 2", "0 and 1"),
    refusal(lambda: plotting.roc_curve(LABELS, SCORES * np.nan), "NaN", "leave these records"),
    refusal(lambda: plotting.roc_curve(np.zeros(60, int), np.zeros((60, 20))), "20 curves", "more than 12"),
    refusal(lambda: plotting.roc_curve(LABELS, SCORES, classes=["a", "b"]), "3 curves", "but 2 names"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
