"""Invariants of partitioned random nets: pairs of bridges, common order, gradients over bridges."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.net import Node
from tests.support.random_nets import nets


@st.composite
def cut_nets(draw: st.DrawFn) -> PartitionedNet:
    parts = draw(st.integers(2, 4))
    return partition(draw(nets(parts)), parts)


def bridges_come_in_pairs_between_different_workers(cut: PartitionedNet):
    bridges = [(k, node) for k, node in enumerate(cut.nodes) if isinstance(node.layer, BridgeDst)]
    keys = [node.layer.key for _, node in bridges]
    assert len(set(keys)) == len(keys) == sum(isinstance(node.layer, BridgeSrc) for node in cut.nodes)
    for k, node in bridges:
        (source,) = node.sources
        src, dst = cut.nodes[source].layer, node.layer
        assert isinstance(src, BridgeSrc)
        assert (src.key, src.shape, src.returns_gradient) == (dst.key, dst.shape, dst.returns_gradient)
        assert src.location == cut.places[k].location != cut.places[source].location == dst.location
    for k, node in enumerate(cut.nodes):
        if not isinstance(node.layer, BridgeDst):
            assert all(cut.places[source].location == cut.places[k].location for source in node.sources)


def every_worker_follows_the_common_order(cut: PartitionedNet):
    for k, node in enumerate(cut.nodes):
        assert all(source < k for source in node.sources)
    for location, local in enumerate(cut.locals):
        expected = [node for node, place in zip(cut.nodes, cut.places, strict=True) if place.location == location]
        assert [node.layer for node in local.nodes] == [node.layer for node in expected]
        names = [node.layer.name for node in local.nodes]
        assert len(set(names)) == len(names)
        for node, common in zip(local.nodes, expected, strict=True):
            sources = [] if isinstance(node.layer, BridgeDst) else [cut.nodes[s].layer for s in common.sources]
            assert [local.nodes[source].layer for source in node.sources] == sources


def bridges_send_at_once_and_receive_as_late_as_possible(cut: PartitionedNet):
    for k, node in enumerate(cut.nodes):
        if isinstance(node.layer, BridgeSrc):
            (source,) = node.sources
            since = cut.nodes[source + 1 : k]
            name = cut.nodes[source].layer.name  # other parts of the source may come first
            assert all(isinstance(node.layer, BridgeSrc) or node.layer.name == name for node in since)
    waiting: set[int] = set()  # for what has just been received
    for k, node in enumerate(cut.nodes):
        if isinstance(node.layer, BridgeDst):
            waiting.add(k)
        elif waiting:
            parts = [part for part in cut.nodes[k:] if part.layer.name == node.layer.name]
            assert any(waiting & set(part.sources) for part in parts), "there was something else to do"
            waiting.clear()


def only_gradients_that_are_needed_cross_bridges(cut: PartitionedNet):
    trained, followed = [False] * len(cut.nodes), [False] * len(cut.nodes)
    for k, node in enumerate(cut.nodes):
        has_params = any(spec.trainable for spec in node.layer.params)
        trained[k] = not node.layer.is_loss and (has_params or any(trained[source] for source in features(node)))
    for k, node in reversed(list(enumerate(cut.nodes))):
        if (node.layer.is_loss or followed[k]) and not node.layer.is_output:
            for source in features(node):
                followed[source] = True
    for k, node in enumerate(cut.nodes):
        if isinstance(node.layer, BridgeDst):
            assert node.layer.returns_gradient == (trained[k] and followed[k]), node.layer.name


def features(node: Node) -> list[int]:
    """The sources of which a node takes the feature, not the labels."""
    return [source for k, source in enumerate(node.sources) if k != node.layer.labels.source]


def parts_cover_every_layer_and_every_param_once(cut: PartitionedNet):
    for name, layer_cut in cut.cuts.items():
        parts = [node for local in cut.locals for node in local.nodes if node.layer.name == name]
        total = cut.whole.layer(name).shape
        if layer_cut.dim == -1:
            assert len(parts) == 1
            assert cut.locals[layer_cut.location].layer(name) is cut.whole.layer(name)
            continue
        ranges = [node.rows if layer_cut.dim == 0 else node.layer.columns for node in parts]
        assert (ranges[0].start, ranges[-1].stop) == (0, total[layer_cut.dim])
        assert all(before.stop == after.start for before, after in pairwise(ranges))
        assert all(before.start < before.stop for before in ranges)
    for name, param in cut.whole.params.items():
        times = np.zeros(param.shape, int)
        for part in (part for part in cut.parts.values() if part.param == name):
            assert part.of(times).shape == part.shape
            part.of(times)[...] += 1
        assert (times == 1).all()
    for location, local in enumerate(cut.locals):
        assert local.params.keys() == {name for name, part in cut.parts.items() if location in part.users}
        for node in local.nodes:
            for spec, name in zip(node.layer.params, node.params, strict=True):
                assert spec.shape == cut.parts[name].shape


PROPERTIES = (
    bridges_come_in_pairs_between_different_workers,
    every_worker_follows_the_common_order,
    bridges_send_at_once_and_receive_as_late_as_possible,
    only_gradients_that_are_needed_cross_bridges,
    parts_cover_every_layer_and_every_param_once,
)


@given(cut_nets())
def test_a_random_net_that_is_cut_has_all_properties(cut: PartitionedNet):
    for holds in PROPERTIES:
        holds(cut)
