"""ROC curves and precision by recall have scikit-learn's points; a confusion matrix is drawn from evaluate's counts."""

from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from dsinga import nn, plotting
from dsinga.job import loads
from dsinga.monitor import History
from tests.support.command_line import Dsinga
from tests.support.later_import import LaterImport
from tests.support.refusals import check_refusal, refusal, refused

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
    refusal(lambda: plotting.confusion_matrix({"loss": 1.0}), "these results have no", "compile the model"),
    refusal(lambda: plotting.confusion_matrix([[1, 2]]), "64 of", "shape (1, 2"),
    refusal(lambda: plotting.confusion_matrix([[0.5]]), "not float64 of shape"),
    refusal(lambda: History().plot(), "no metrics to draw", "train for at"),
    refusal(lambda: plotting.returns({}), "there are no results", "to draw"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


# Drawing learning rates of schedules, optimizers and jobs.
JOB = "train_steps: 20 updater { type: kSGD learning_rate { type: kFixed base_lr: 0.5 } }"


def test_drawing_schedules_needs_steps_and_schedules():
    pytest.importorskip("matplotlib")
    refused(lambda: plotting.learning_rates(nn.CosineDecay(0.1, 9)), "say how many steps are drawn")
    refused(lambda: plotting.learning_rates(0.1, 9), "a learning rate is that", "not of 0")
    axes = plotting.learning_rates({"a job": loads(JOB), "sgd": nn.SGD(0.1)}, 9)
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5] * 9, [0.1] * 9]


# The command show: the pictures that it draws.
def test_show_draws_a_net(dsinga: Dsinga, folder: Path) -> None:
    assert "drawn to cli.svg" in dsinga("show", "job.conf").stdout
    assert (folder / "cli.svg").read_text().lstrip().startswith("<svg")


def test_show_draws_the_parts_of_a_cut_net_below_its_sites(dsinga: Dsinga, folder: Path) -> None:
    sites = [f"cluster.{field}" for field in ("nworker_groups=2", "nserver_groups=2", "sync_method=kMean")]
    options = [word for field in sites for word in ("--set", field)]
    cut = ["--set", "neuralnet.layer[ip1].partition_dim=1", "--partitions", "2"]
    shown = dsinga("show", "job.conf", "--svg", "parts.svg", *cut, *options)
    assert "topology: local SGD: 2 groups of 1 worker, 2 groups of 1 server, synchronised by the mean" in shown.stdout
    assert "worker 1" in (folder / "parts.svg").read_text()


def test_a_picture_that_cannot_be_written_is_refused(dsinga: Dsinga) -> None:
    refused = dsinga("show", "job.conf", "--svg", "job.conf/x.svg")
    said = "dsinga: the picture job.conf/x.svg cannot be written: Not a directory; name another file\n"
    assert (refused.returncode, refused.stderr) == (2, said)


# The progress of training in a notebook: curves below the line.
NOW = {"step": 100, "samples_per_second": 3200.4, "loss": 0.25, "accuracy": 0.9375}
TRAIN = {"step": 100, "phase": "train", "time": 2.0, "loss": 0.26, "accuracy": 0.93}
TEST = {"step": 100, "phase": "test", "time": 2.5, "loss": 0.3, "accuracy": 0.92}

CELL = f"""
from dsinga.monitor import show_progress
with show_progress(400, "net") as progress:
    progress.update({NOW})
    progress.show_row({TRAIN})
    progress.show_row({TEST})
"""


RESUMED = f"""
with show_progress(400, "net", earlier=[{TEST}]) as progress:
    progress.remark("training stopped")
"""


@pytest.mark.ci
def test_a_notebook_gets_the_picture():
    cells = [nbformat.v4.new_code_cell(text) for text in (CELL, RESUMED)]
    NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60, kernel_name="python3").execute()
    (output,) = cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == "net: step 100/400  loss 0.25  accuracy 0.9375  3,200 samples/s"
    assert "train 0.93" in output.data["text/html"]
    assert "test 0.92" in output.data["text/html"]
    (output,) = cells[1].outputs
    assert output.data["text/plain"] == "net: step 100/400\ntraining stopped"
    assert "\ntraining stopped</div>" in output.data["text/html"]
    assert "test 0.92" in output.data["text/html"]
    assert "train " not in output.data["text/html"]
