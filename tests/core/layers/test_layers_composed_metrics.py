"""Metrics that are no means, against scikit-learn: of all records, however these were divided."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsinga
from dsinga.layers import Layer
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.layers.metrics.metric_state import ArraySum
from dsinga.ops import BACKENDS
from dsinga.training import add_metrics
from tests.support.layer_cases import context, layer_of

measures = pytest.importorskip("sklearn.metrics")
CTX = context(BACKENDS["numpy"]())


def figures_of(layer: Layer, predictions: np.ndarray, labels: np.ndarray, cuts: Sequence[int]) -> dict[str, Any]:
    """Return the figures of all rows, of which each part was given to the layer by itself."""
    parts = zip(np.split(predictions, cuts), np.split(labels, cuts), strict=True)
    return metric_values(add_metrics([dict(layer.compute_feature((), part, CTX).metrics) for part in parts]))


@given(st.lists(st.integers(0, 40), max_size=4).map(sorted), st.integers(0, 99), st.sampled_from([(), (3,)]))
def test_errors_of_numbers(cuts: list[int], seed: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    predictions, labels = rng.normal(size=(2, 40, *shape)).astype(np.float32)
    found = figures_of(layer_of("kRegressionError", (40, *(shape or (1,))), labels.shape), predictions, labels, cuts)
    rmse = measures.mean_squared_error(labels.ravel(), predictions.ravel()) ** 0.5
    assert found == pytest.approx(
        {
            "rmse": rmse,
            "mae": measures.mean_absolute_error(labels.ravel(), predictions.ravel()),
            "r2": measures.r2_score(labels, predictions),
        }
    )


@given(st.lists(st.integers(0, 30), max_size=4).map(sorted), st.integers(0, 99), st.integers(2, 7))
def test_confusions_of_classes(cuts: list[int], seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=(30, classes)).astype(np.float32), rng.integers(classes - 1, size=30)
    found = figures_of(layer_of("kConfusionMatrix", scores.shape, labels.shape), scores, labels, cuts)
    chosen = scores.argmax(axis=1)
    assert found.pop("confusion") == measures.confusion_matrix(labels, chosen, labels=range(classes)).tolist()
    of_classes = measures.precision_recall_fscore_support(labels, chosen, labels=range(classes), zero_division=0)
    averages = measures.precision_recall_fscore_support(labels, chosen, average="macro", zero_division=0)
    for name, average, by_class in zip(("precision", "recall", "f1"), averages, of_classes, strict=False):
        assert found.pop(f"macro_{name}") == pytest.approx(average)
        assert found.pop(f"{name}_by_class") == pytest.approx(by_class)
        if classes == 2:
            assert found.pop(name) == pytest.approx(by_class[1])
    assert found.pop("mcc") == pytest.approx(measures.matthews_corrcoef(labels, chosen), abs=1e-12)
    assert not found


def test_a_layer_in_front_of_the_name_stays() -> None:
    sums = ArraySum(np.array([2.0, 2.0, 0.0, 8.0, 4.0]))
    found = metric_values({"a/errors:sums": (sums, 2), "loss": (6.0, 3), "empty": (0.0, 0)})
    assert found == {"a/rmse": 2.0, "a/mae": 2.0, "loss": 2.0}
    assert metric_values({"errors:sums": (ArraySum(np.zeros(5)), 0)}) == {}


JOB = """
name: "figures" train_steps: 4 test_freq: 4 disp_freq: 4
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 16 } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 6 }
    param { init { type: kGaussian std: 1 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
  layer { name: "top2" type: kAccuracy srclayers: "scores" srclayers: "data" argsort_conf { topk: 2 } }
  layer { name: "top5" type: kAccuracy srclayers: "scores" srclayers: "data" argsort_conf { topk: 5 } }
  layer { name: "table" type: kConfusionMatrix srclayers: "scores" srclayers: "data" }
  layer { name: "area" type: kGatheredMetrics srclayers: "loss" srclayers: "data"
    gatheredmetrics_conf { metric: "roc_auc" metric: "average_precision" } }
  layer { name: "top" type: kTopKAccuracy srclayers: "scores" srclayers: "data" topkaccuracy_conf { k: 3 } }
  layer { name: "perplexity" type: kPerplexity srclayers: "loss" srclayers: "data" }
  layer { name: "number" type: kInnerProduct srclayers: "data" partition_dim: 0 innerproduct_conf { num_output: 1 } }
  layer { name: "errors" type: kRegressionError srclayers: "number" srclayers: "data" }
}
"""
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(50, 5)).astype(np.float32), RNG.integers(6, size=50)
CUTS = {
    "features": ("neuralnet.partition_dim=1", "cluster.nworkers_per_group=2"),
    "groups": ("cluster.nworker_groups=2",),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_tests_of_a_run_have_the_figures_of_all_records_however_the_net_is_cut(cut: tuple[str, ...]) -> None:
    job = dsinga.loads(JOB, overrides=cut)
    result = dsinga.train(job, data={"train": (X, Y), "test": (X, Y)}, progress=False)  # a last batch of two records
    row = result.history.phase("test")[-1]
    scores, numbers = (dsinga.predict(job, result.params, name, data=X) for name in ("scores", "number"))
    for k in (2, 5):
        assert row[f"top{k}/accuracy"] == pytest.approx(measures.top_k_accuracy_score(Y, scores, k=k))
    assert row["macro_f1"] == pytest.approx(measures.f1_score(Y, scores.argmax(axis=1), average="macro"))
    assert row["rmse"] == pytest.approx(measures.mean_squared_error(Y, numbers) ** 0.5, rel=1e-5)
    assert row["mae"] == pytest.approx(measures.mean_absolute_error(Y, numbers), rel=1e-5)
    assert row["r2"] == pytest.approx(measures.r2_score(Y, numbers), rel=1e-5)
    chances = np.exp(scores.astype(np.float64))
    chances /= chances.sum(axis=1, keepdims=True)
    assert row["roc_auc"] == pytest.approx(measures.roc_auc_score(Y, chances, multi_class="ovr"), rel=1e-6)
    assert row["average_precision"] == pytest.approx(measures.average_precision_score(Y, chances), rel=1e-6)
    assert row["top_3_accuracy"] == pytest.approx(measures.top_k_accuracy_score(Y, scores, k=3))
    assert row["perplexity"] == pytest.approx(np.exp(measures.log_loss(Y, chances)), rel=1e-6)
    tested = dsinga.evaluate(job, result.params, data=(X, Y))
    assert tested["f1_by_class"] == pytest.approx(measures.f1_score(Y, scores.argmax(axis=1), average=None))
    assert tested["roc_auc"] == pytest.approx(row["roc_auc"], rel=1e-6)
    table = dsinga.evaluate(job, result.params, data=(X, Y))["confusion"]
    assert table == measures.confusion_matrix(Y, scores.argmax(axis=1)).tolist()
