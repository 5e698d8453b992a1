"""Rankings and their measures: cases worked out by hand, and properties of random cases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist
from sklearn.metrics import average_precision_score

from dsinga.addons.retrieval import (
    average_precision,
    chance,
    mean_average_precision,
    nearest,
    precision_at,
    precision_at_recall,
    ranked_relevance,
)
from dsinga.addons.retrieval import ranking as retrieval
from dsinga.data import write_store
from tests.support.command_line import Dsinga
from tests.support.refusals import refused

RANKED = np.array([[1, 0, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, 1, 1]], bool)


def test_average_precision_is_the_mean_over_ranks_of_relevant_rows() -> None:
    np.testing.assert_allclose(average_precision(RANKED), [(1 + 2 / 3) / 2, (1 / 3 + 2 / 4) / 2, 1])


def test_precision_at_k() -> None:
    np.testing.assert_allclose(precision_at(RANKED, 2), [1 / 2, 0, 1])


def test_precision_at_recall_is_the_best_at_that_recall_or_a_higher_one() -> None:
    curve = precision_at_recall(RANKED, np.array([0, 0.5, 0.6, 1]))
    np.testing.assert_allclose(curve, [[1, 1, 2 / 3, 2 / 3], [1 / 2, 1 / 2, 1 / 2, 1 / 2], [1, 1, 1, 1]])


def test_distances_rank_by_angle_or_by_difference() -> None:
    queries = [[1.0, 0.0]]
    database = [[9.0, 1.0], [0.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]
    assert nearest(queries, database, 4, "cosine").tolist() == [[0, 2, 1, 3]]
    assert nearest(queries, database, 3, "euclidean").tolist() == [[1, 2, 3]]  # 1 and 2 are equally far


def test_queries_without_relevant_rows_are_left_out() -> None:
    (relevant,) = ranked_relevance([[1.0], [2.0]], [[1.0]], [5, 3], [3])
    assert relevant.tolist() == [[True]]
    assert chance([5, 3], [3]) == 1


def features(rows: int, columns: int) -> st.SearchStrategy[np.ndarray]:
    """Features with many equal distances."""
    return arrays(np.float64, (rows, columns), elements=st.integers(-2, 2).map(float))


def labels(rows: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(int, rows, elements=st.integers(0, 2)).map(lambda labels: np.r_[0, labels[1:]])


case = {
    "queries": features(4, 3), "database": features(9, 3), "query_labels": labels(4), "row_labels": labels(9),
    "distance": st.sampled_from(retrieval.DISTANCES),
}  # fmt: skip


def map_of_scikit_learn(queries: Any, database: Any, query_labels: Any, row_labels: Any, distance: str) -> float:
    """Return MAP of scipy's distances; rows that are equally far are in their order, a zero is orthogonal to all."""
    distances = np.nan_to_num(cdist(queries, database, distance), nan=1).round(9)
    relevant = row_labels[distances.argsort(axis=1, kind="stable")] == query_labels[:, None]
    return float(np.mean([average_precision_score(row, -np.arange(len(row))) for row in relevant if row.any()]))


@given(**case)
def test_map_is_that_of_scikit_learn(queries: Any, database: Any, query_labels: Any, row_labels: Any, distance: str):
    # In float64 equal angles may differ in the last bit, and then ties are not in the order of the rows.
    if distance == "cosine":
        database = database[:, :1] * [[1.0, 0, 0]]
    expected = map_of_scikit_learn(queries, database, query_labels, row_labels, distance)
    assert mean_average_precision(queries, database, query_labels, row_labels, distance) == pytest.approx(expected)


@given(**case)
def test_blocks_of_queries_give_the_same_ranking(
    queries: Any, database: Any, query_labels: Any, row_labels: Any, distance: str
) -> None:
    whole = np.concatenate([*ranked_relevance(queries, database, query_labels, row_labels, distance)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "BLOCK", 18)
        blocks = [*ranked_relevance(queries, database, query_labels, row_labels, distance)]
    assert max(len(block) for block in blocks) <= 2
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_chance_is_the_mean_over_random_rankings() -> None:
    rng = np.random.default_rng(0)
    query_labels, row_labels = np.array([0, 1]), np.array([0, 0, 0, 1, 1, 2, 2])
    rankings = (row_labels[rng.permutation(7)] for _ in range(20000))
    random = [average_precision(ranking[None] == query_labels[:, None]).mean() for ranking in rankings]
    assert chance(query_labels, row_labels) == pytest.approx(np.mean(random), abs=0.005)


ROWS, LABELS = np.ones((3, 2)), np.array([0, 1, 2])
FAULTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "distance": ((ROWS, ROWS, LABELS, LABELS, "manhattan"), "no distance 'manhattan'; choose cosine or euclidean"),
    "widths": ((ROWS, np.ones((3, 4)), LABELS, LABELS), "queries are rows of 2 numbers, the database's of 4"),
    "labels": ((ROWS, ROWS, LABELS[:2], LABELS), r"queries are 3 rows, but their labels \(2,\)"),
    "classes": ((ROWS, ROWS, LABELS + 9, LABELS), "no query has a label that a row of the database has"),
    "numbers": ((ROWS, ROWS * [[1], [np.nan], [1]], LABELS, LABELS), "database have numbers .* first in row 1"),
    "rows": ((ROWS, np.ones((0, 2)), LABELS, LABELS[:0]), "no query has a label"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_arguments_is_named(fault: str) -> None:
    arguments, message = FAULTS[fault]
    refused(lambda: mean_average_precision(*arguments), message)


@pytest.mark.parametrize("k", [0, 4])
def test_k_must_not_exceed_the_rows(k: int) -> None:
    refused(lambda: nearest(ROWS, ROWS, k), f"k must be between 1 and the 3 rows of the database, not {k}")


# The command retrieve: what it prints.
def test_retrieve_measures_the_ranking(dsinga: Dsinga, folder: Path) -> None:
    write_store(folder / "q.zarr", [(np.array([[1.0, 0], [0, 1]]), np.array([0, 1]))])
    write_store(folder / "d.zarr", [(np.array([[3.0, 1], [2, 1], [1, 3]]), np.array([0, 1, 1]))])
    ranked = dsinga("retrieve", "q.zarr", "d.zarr", "--at", "1")
    assert ranked.returncode == 0, ranked.stderr
    lines = [line.rsplit(maxsplit=1) for line in ranked.stdout.splitlines()]
    assert lines[:2] == [["mean average precision", "1.0000"], ["precision at 1", "1.0000"]]
    euclidean = dsinga("retrieve", "q.zarr", "d.zarr", "--distance", "euclidean", "--at", "3")
    assert "mean average precision   0.7500" in euclidean.stdout  # (2, 1) is nearer to (1, 0) than (3, 1)
    write_store(folder / "bare.zarr", [(np.eye(2), None)])
    refused = dsinga("retrieve", "q.zarr", "d.zarr", "--at", "4")
    assert refused.returncode == 2
    assert refused.stderr == "dsinga: k must be between 1 and the 3 rows of the database, not 4\n"
    assert "bare.zarr has no labels" in dsinga("retrieve", "q.zarr", "bare.zarr").stderr
    assert "nowhere.zarr was not found" in dsinga("retrieve", "nowhere.zarr", "d.zarr").stderr
