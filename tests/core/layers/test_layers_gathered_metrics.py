"""ROC AUC, average precision and users' functions of all records, against scikit-learn, however these were divided."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsinga
from dsinga import nn
from dsinga.extensions import EverySteps
from dsinga.extensions.standard import Display
from dsinga.layers.metrics import metric_state
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.layers.metrics.metric_state import GatheredRows, RunningMoments
from dsinga.layers.metrics.score_curves import average_precision, roc_auc
from dsinga.ops import BACKENDS
from dsinga.training import add_metrics
from tests.support.layer_cases import context, layer_of
from tests.support.refusals import refused
from tests.support.registries import restored_registry

measures = pytest.importorskip("sklearn.metrics")
CTX = context(BACKENDS["numpy"]())
CUTS = st.lists(st.integers(0, 40), max_size=4).map(sorted)
SEEDS = st.integers(0, 999)


@pytest.fixture
def registries() -> Iterator[None]:
    with restored_registry():
        yield


def figures_of(predictions: np.ndarray, labels: np.ndarray, cuts: Sequence[int], *metrics: str) -> dict[str, Any]:
    """Return the figures of all rows, of which each part was given to the layer by itself, the last one first."""
    layer = layer_of("kGatheredMetrics", predictions.shape, labels.shape, gatheredmetrics_conf={"metric": [*metrics]})
    parts = list(zip(np.split(predictions, cuts), np.split(labels, cuts), strict=True))
    return metric_values(add_metrics([dict(layer.compute_feature((), part, CTX).metrics) for part in reversed(parts)]))


@given(CUTS, SEEDS, st.sampled_from(["one column", "two columns", "a float label"]))
def test_yes_or_no_with_ties(cuts: list[int], seed: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 9, (40, 1)).astype(np.float32) / 8, rng.permutation(40) % 3 == 0
    given_scores = np.concatenate([1 - scores, scores], axis=1) if form == "two columns" else scores
    given_labels = labels[:, None].astype(np.float32) if form == "a float label" else labels.astype(np.int64)
    found = figures_of(given_scores, given_labels, cuts, "roc_auc", "average_precision")
    assert found["roc_auc"] == pytest.approx(measures.roc_auc_score(labels, scores[:, 0]), abs=1e-14)
    assert found["average_precision"] == pytest.approx(
        measures.average_precision_score(labels, scores[:, 0]), abs=1e-14
    )


@given(CUTS, SEEDS, st.booleans())
def test_several_classes_one_against_the_others_or_several_labels(cuts: list[int], seed: int, labelled: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random((40, 3)) if labelled else rng.dirichlet(np.ones(4), 40)
    labels = rng.integers(0, 2, (40, 3)) if labelled else rng.permutation(40) % 4
    found = figures_of(scores, labels, cuts, "roc_auc", "average_precision")
    assert found["roc_auc"] == pytest.approx(measures.roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-14)
    assert found["average_precision"] == pytest.approx(measures.average_precision_score(labels, scores), abs=1e-14)


@given(CUTS, SEEDS)
def test_a_users_function_gives_the_same_bits_however_records_are_divided(cuts: list[int], seed: int) -> None:
    with restored_registry():
        dsinga.register("metric", "brier")(lambda labels, predictions: np.square(labels - predictions).mean())
        rng = np.random.default_rng(seed)
        scores, labels = rng.random((40, 1), np.float32), rng.integers(0, 2, 40)
        whole = figures_of(scores, labels, [], "brier")["brier"]
        assert figures_of(scores, labels, cuts, "brier")["brier"] == whole
        assert whole == pytest.approx(measures.brier_score_loss(labels, scores[:, 0].astype(np.float64)), rel=1e-5)


def test_an_answer_that_does_not_occur_leaves_its_class_out() -> None:
    scores = np.random.default_rng(0).random((9, 3))
    labels = np.array([0, 1, 0, 1, 1, 0, 1, 0, 0])  # no record of class 2
    of_two = [measures.roc_auc_score(labels == k, scores[:, k]) for k in (0, 1)]
    assert roc_auc(labels, scores) == pytest.approx(np.mean(of_two))
    assert np.isnan(roc_auc(np.zeros(3), np.arange(3.0)))
    for answers, some in ((np.eye(3, dtype=int)[labels], scores), (np.zeros(9, int), scores[:, 0])):
        with pytest.warns(UserWarning, match="No positive class"):
            expected = measures.average_precision_score(answers, some)
        assert average_precision(answers, some) == pytest.approx(expected)
    assert average_precision(np.zeros(9, int), scores) == pytest.approx(1 / 3)  # each record is of class 0
    assert np.isnan(roc_auc(np.zeros((0,), int), np.zeros((0, 2))))
    for metric in (roc_auc, average_precision):
        assert np.isnan(metric(np.array([0, 1, 1]), np.array([0.1, np.nan, 0.3])))


@pytest.mark.parametrize("metric", [roc_auc, average_precision])
def test_scores_that_differ_by_rounding_are_ties(metric) -> None:
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.random(40), -rng.random(40), [0, 1e30, np.inf]]).astype(np.float32)
    answers, places = rng.integers(0, 2, 4000), rng.integers(0, len(scores), 4000)
    exact = metric(answers, scores[places])
    rounded = scores[places] * (1 + rng.integers(-3, 4, 4000) * np.finfo(np.float32).eps).astype(np.float32)
    assert metric(answers, rounded) == exact
    dense = rng.random(100_000, np.float32)
    yes = rng.random(100_000) < dense
    function = {roc_auc: measures.roc_auc_score, average_precision: measures.average_precision_score}[metric]
    assert metric(yes, dense) == pytest.approx(function(yes, dense), abs=2e-6)


def test_the_areas_of_equal_records_do_not_depend_on_the_size_of_batches() -> None:
    rng = np.random.default_rng(0)
    base, which = rng.normal(size=(40, 20)).astype(np.float32), rng.integers(0, 40, 700)
    model = nn.Sequential([nn.Input(20), nn.Dense(64, activation="relu"), nn.Dense(1)])
    model.compile("adam", "binary_crossentropy", metrics=["roc_auc", "average_precision"])
    labels = rng.integers(0, 2, 700)
    tested = [model.evaluate(base[which], labels, batch_size=size) for size in (1, 33, 111, 333, 700)]
    assert len({(one["roc_auc"], one["average_precision"]) for one in tested}) == 1


def test_names_and_functions_that_it_refuses(registries: None) -> None:
    refused(lambda: figures_of(np.ones((40, 1)), np.zeros(40, int), [], "roc_auk"), "'roc_auk'; did you mean 'roc_auc'")
    dsinga.register("metric", "rows")(lambda labels, predictions: labels[:3])
    refused(lambda: figures_of(np.ones((40, 1)), np.zeros(40, int), [], "rows"), "'rows'", "each record, not")


def test_the_memory_that_is_gathered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = GatheredRows(np.zeros(10, np.int64), np.zeros((10, 2), np.float32))
    assert (rows + rows).nbytes == 2 * 160
    monkeypatch.setattr(metric_state, "MOST_BYTES", 300)
    refused(lambda: rows + rows, "a metric of all labels and predictions would gather more than")


def test_many_parts_are_pickled_without_deep_recursion() -> None:
    part = GatheredRows(np.zeros(1, np.int64), np.zeros((1, 1), np.float32))
    rows = sum([part] * 5000, 0.0)
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert len(rows.rows()[0]) == 5000


def test_moments_lose_no_digits_far_from_zero() -> None:
    labels = 1e6 + np.random.default_rng(0).normal(size=(1000, 2))
    errors = np.random.default_rng(1).normal(size=(1000, 2)) / 10
    parts = [RunningMoments.of(*pair) for pair in zip(np.split(labels, 8), np.split(errors, 8), strict=True)]
    value = metric_values({"r2:moments": (sum(parts, 0.0), 1000)})["r2"]
    assert value == pytest.approx(measures.r2_score(labels, labels + errors), abs=1e-12)
    same = RunningMoments.of(np.ones((3, 1)), np.zeros((3, 1)))
    assert metric_values({"r2:moments": (same, 3)})["r2"] == 1 == measures.r2_score(np.ones(3), np.ones(3))
    assert metric_values({"r2:moments": (same, 1)}) == {}


def test_a_row_goes_on_after_a_snapshot() -> None:
    """The sums since the last row of the history are part of a snapshot."""
    rng = np.random.default_rng(0)
    rows = [GatheredRows(rng.integers(0, 2, 5), rng.random((5, 1))) for _ in range(2)]
    moments = RunningMoments.of(rng.random((5, 2)), rng.random((5, 2)))
    unbroken, first, second = (Display(EverySteps(1)) for _ in range(3))
    sums = [{"gathered:roc_auc": (row, 0), "r2:moments": (moments, 5), "loss": (1.5, 2)} for row in rows]
    for part in sums:
        unbroken.add([part])
    first.add([sums[0]])
    second.load_state(first.state_dict())
    second.add([sums[1]])
    assert second.state_dict()["sums"] == unbroken.state_dict()["sums"]
    assert metric_values(second._sums) == metric_values(unbroken._sums)
