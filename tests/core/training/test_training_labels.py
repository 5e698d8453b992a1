"""Labels follow their rows where rows are sliced, split and joined."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers import Records
from dsinga.training import forward
from dsinga.training.metrics import Metrics
from tests.support.training_cases import build, context, layer, records_of, values_of

ROWS = 5
JOIN = {"concate_conf": {"concate_dim": 0}}


def hits(name: str, *sources: str) -> LayerConf:
    return layer(name, "kAccuracy", *sources, argsort_conf={"topk": 1})


def run(*layers: LayerConf) -> Metrics:
    """Run the net of ``layers`` on 5 rows, whose largest column is their class; return its metrics."""
    net = build(*layers, shape=(3,), rows=ROWS)
    labels = records_of(net)["data"].labels
    return forward(net, values_of(net), {"data": Records(np.eye(3)[labels], labels)}, context(net))[1]


def test_each_slice_of_the_batch_has_the_labels_of_its_rows():
    slices = {"slice_conf": {"slice_dim": 0, "num_slices": 2}}
    metrics = run(
        layer("slice", "kSlice", "data", **slices),
        layer("first", "kReLU", "slice"),
        layer("second", "kReLU", "slice"),
        hits("a", "first", "first"),
        hits("b", "second", "second"),
        hits("all", "data", "slice"),
    )
    everywhere = (ROWS, ROWS)
    assert metrics == {"accuracy": everywhere, "a/accuracy": (3, 3), "b/accuracy": (2, 2), "all/accuracy": everywhere}


def test_each_end_of_a_split_has_all_labels():
    metrics = run(
        layer("split", "kSplit", "data", split_conf={"num_splits": 2}),
        layer("first", "kReLU", "split"),
        layer("second", "kReLU", "split"),
        hits("a", "first", "second"),
        hits("b", "second", "split"),
    )
    assert metrics == dict.fromkeys(("accuracy", "a/accuracy", "b/accuracy"), (ROWS, ROWS))


def test_joined_rows_have_joined_labels():
    metrics = run(
        layer("relu", "kReLU", "data"), layer("both", "kConcate", "data", "relu", **JOIN), hits("a", "both", "both")
    )
    assert metrics == {"accuracy": (2 * ROWS, 2 * ROWS)}


def test_rows_joined_with_some_that_have_no_labels_have_none():
    dummy = layer("dummy", "kDummy", dummy_conf={"input": True, "shape": [ROWS, 3]})
    with pytest.raises(UserError, match="'both' has no labels"):
        run(dummy, layer("both", "kConcate", "data", "dummy", **JOIN), hits("a", "both", "both"))


def test_joined_columns_have_the_labels_of_the_first_source_with_labels():
    dummy = layer("dummy", "kDummy", dummy_conf={"input": True, "shape": [ROWS, 3]})
    both = layer("both", "kConcate", "dummy", "data", concate_conf={"concate_dim": 1})
    metrics = run(dummy, both, hits("a", "data", "both"))
    assert metrics == {"accuracy": (ROWS, ROWS)}
