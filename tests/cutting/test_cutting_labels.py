"""Partitioned nets whose rows the job slices and joins: labels are sent with their rows."""

import pytest

from dsinga.base.registry import register
from dsinga.cutting.partitioning import partition
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import Output, RecordInfo
from dsinga.net import create_net
from tests.support.partitioned_run import assert_equal_runs, batches_of, initial, run_partitioned, run_whole
from tests.support.refusals import refused
from tests.support.training_cases import build, dense, layer
from tests.support.user_layers import Identity


@register("layer", "OtherLabels")
class OtherLabels(Identity):
    """Passes on the labels with other numbers."""

    def hand_on_labels(self, labels, ctx):
        return (labels[0] + 1) % 3


@register("layer", "Unsaid")
class Unsaid(Identity):
    """Makes labels without declaring it."""

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0], labels=(sources[0][:, 0] > 0).astype(int))


JOIN = {"concate_conf": {"concate_dim": 0}}
HALVES = {"slice_conf": {"slice_dim": 0, "num_slices": 2}}
LOSS = layer("loss", "kSoftmaxLoss", "top", "both")

A, B, TOP = dense("a", "data"), dense("b", "data"), dense("top", "both")
SLICE, FIRST, SECOND = layer("halves", "kSlice", "a", **HALVES), dense("first", "halves"), dense("second", "halves")
TANH = layer("second", "kSTanh", "halves")
JOINED, NORM = layer("both", "kConcate", "a", "b", **JOIN), layer("norm", "kBM", "drop")
ENDS = [layer(name, "kSoftmaxLoss", source, source) for name, source in (("one", "first"), ("two", "second"))]
NETS: dict[str, list[LayerConf]] = {
    "joined": [A, B, JOINED, layer("drop", "kDropout", "both"), NORM, dense("top", "norm"), LOSS],
    "numbered otherwise": [A, layer("both", "OtherLabels", "a"), TOP, LOSS],
    "sliced": [A, SLICE, FIRST, SECOND, *ENDS, layer("hits", "kAccuracy", "a", "halves")],
    "joined the other way": [A, SLICE, FIRST, TANH, layer("both", "kConcate", "second", "first", **JOIN), TOP, LOSS],
}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("layers", NETS.values(), ids=NETS)
def test_labels_are_sent_with_their_rows(layers: list[LayerConf], workers: int):
    net = build(*layers, shape=(3,), rows=6)
    values, batches = initial(net), batches_of(net, 3, classes=3)
    whole = run_whole(net, values, batches)
    assert_equal_runs(run_partitioned(partition(net, workers), values, batches), whole, 1e-9)


def test_mistakes_are_named_with_their_remedies() -> None:
    dummy = layer("dummy", "kDummy", dummy_conf={"input": True, "shape": [6, 4]})
    both = layer("both", "kConcate", "a", "dummy", **JOIN)
    net = build(dummy, dense("a", "data", 4), both, TOP, LOSS, shape=(3,), rows=6)
    refused(lambda: partition(net, 2), "a later layer takes its", "sources have labels")
    net = build(dense("a", "data"), layer("both", "Unsaid", "a"), dense("top", "both"), LOSS, shape=(3,), rows=6)
    values, batches = initial(net), batches_of(net, 1, classes=2)
    run_whole(net, values, batches)
    refused(lambda: run_partitioned(partition(net, 2), values, batches), "compute_feature returned", "set new_labels =")


def test_labels_come_from_the_first_store_that_has_some():
    infos = {"plain": RecordInfo((3,), 6, has_labels=False), "labelled": RecordInfo((3,), 6)}
    layers = [layer(name, "kCSVInput") for name in infos]
    join = layer("both", "kConcate", *infos, concate_conf={"concate_dim": 1})
    cut = partition(create_net(NetConf(layer=[*layers, join, dense("top", "both"), LOSS]), Phase.kTrain, infos), 2)
    for local in cut.locals:
        loss = local.nodes[local.position("loss")]
        assert local.nodes[loss.sources[1]].layer.name == "labelled"
