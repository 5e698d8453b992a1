"""Partitioned nets whose rows the job slices and joins: labels move with their rows, to the worker that asks."""

from __future__ import annotations

import pytest
from partitioned_run import assert_equal_runs, batches_of, initial, run_partitioned, run_whole
from trainingcases import build, dense, layer

from dsinga.errors import UserError
from dsinga.job import LayerConf
from dsinga.net.partition import partition

JOIN = {"concate_conf": {"concate_dim": 0}}
HALVES = {"slice_conf": {"slice_dim": 0, "num_slices": 2}}
LOSS = layer("loss", "kSoftmaxLoss", "top", "both")

NETS: dict[str, list[LayerConf]] = {
    "joined": [
        dense("a", "data"),
        dense("b", "data"),
        layer("both", "kConcate", "a", "b", **JOIN),
        dense("top", "both"),
        LOSS,
    ],
    "joined, dropped": [
        dense("a", "data"),
        dense("b", "data"),
        layer("both", "kConcate", "a", "b", **JOIN),
        layer("drop", "kDropout", "both"),
        layer("norm", "kBM", "drop"),
        dense("top", "norm"),
        LOSS,
    ],
    "sliced": [
        dense("a", "data"),
        layer("halves", "kSlice", "a", **HALVES),
        dense("first", "halves"),
        dense("second", "halves"),
        layer("one", "kSoftmaxLoss", "first", "first"),
        layer("two", "kSoftmaxLoss", "second", "second"),
        layer("hits", "kAccuracy", "a", "halves"),
    ],
    "sliced, joined the other way round": [
        dense("a", "data"),
        layer("halves", "kSlice", "a", **HALVES),
        dense("first", "halves"),
        layer("second", "kSTanh", "halves"),
        layer("both", "kConcate", "second", "first", **JOIN),
        dense("top", "both"),
        LOSS,
    ],
}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("layers", NETS.values(), ids=NETS)
def test_labels_go_where_their_rows_go(layers: list[LayerConf], workers: int):
    net = build(*layers, shape=(3,), rows=6)
    values, batches = initial(net), batches_of(net, 3, classes=3)
    whole = run_whole(net, values, batches)
    assert_equal_runs(run_partitioned(partition(net, workers), values, batches), whole, 1e-9)


def test_labels_of_rows_of_which_some_have_none_are_refused():
    net = build(
        layer("dummy", "kDummy", dummy_conf={"input": True, "shape": [6, 4]}),
        dense("a", "data", 4),
        layer("both", "kConcate", "a", "dummy", **JOIN),
        dense("top", "both"),
        LOSS,
        shape=(3,),
        rows=6,
    )
    with pytest.raises(UserError, match="layer 'both': labels are wanted of its rows, of which some have none"):
        partition(net, 2)
