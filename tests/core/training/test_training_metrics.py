"""Metrics have the same names for any number of workers."""

import numpy as np
import pytest

from dsinga.cutting.partitioning import partition
from dsinga.training import name_metrics
from dsinga.training.metrics import merge_metrics, report_metrics
from tests.support.training_cases import build, dense, layer

SIDE = {"loss": (1.0, 2.0), "accuracy": (1.0, 2.0)}
MAIN = {"loss": (3.0, 2.0), "accuracy": (0.0, 2.0)}
NAMES = {
    "loss": (4.0, 2.0), "accuracy": MAIN["accuracy"],
    "side/loss": SIDE["loss"], "side/accuracy": SIDE["accuracy"],
    "side/2/loss": MAIN["loss"], "side/2/accuracy": MAIN["accuracy"],
}  # fmt: skip


def net_with(first: int | None = None, second: int | None = None):
    return build(
        dense("a", "data"),
        layer("side", "kSoftmaxLoss", "a", "data", location=first),
        dense("b", "a"),
        layer("side/2", "kSoftmaxLoss", "b", "data", location=second),
    )


def test_a_shared_metric_name_has_the_total_loss_and_the_last_accuracy():
    assert report_metrics(net_with(), [("side", SIDE), ("side/2", MAIN)]) == NAMES


def test_a_loss_not_counted_in_rows_is_added_as_its_mean():
    parts = [(2.0, 4.0), (6.0, 8.0)]  # two parts of a batch: sums over steps and over rows
    totals = [merge_metrics([("a", {"loss": (3.0, 2 * n)}), ("b", {"loss": (s, n)})])["loss"] for s, n in parts]
    total, count = np.sum(totals, axis=0)
    assert total / count == pytest.approx(6.0 / 24 + 8.0 / 12)
    assert merge_metrics([("a", {"loss": (3.0, 2.0)}), ("b", {"loss": (0.0, 0)})])["loss"] == (3.0, 2.0)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_workers_report_by_layer_and_sums_are_named_as_on_a_single_worker(first: int, second: int):
    cut = partition(net_with(first, second), 2)
    first_reports = [("side", SIDE)] * (first == 0) + [("side/2", MAIN)] * (second == 0)
    second_reports = [("side", SIDE)] * (first == 1) + [("side/2", MAIN)] * (second == 1)
    sums = report_metrics(cut.locals[0], first_reports) | report_metrics(cut.locals[1], second_reports)
    named = name_metrics(cut.whole, sums)
    assert named == NAMES
    assert list(named) == list(NAMES)


def test_metrics_of_a_single_worker_keep_their_names():
    assert name_metrics(net_with(), NAMES) is NAMES
    assert name_metrics(net_with(), {}) == {}
