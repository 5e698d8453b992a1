"""Prepares nets with restricted Boltzmann machines (RBMs) for contrastive divergence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from dsinga.layers.rbm import RBMHid, RBMVis, Reconstruction
from dsinga.net.node import Node, Param


def insert_reconstructions(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Add a layer ``reconstruction(<visible layer>)`` for each RBM, which computes visible from hidden units.

    It shares the visible layer's params.
    """
    added = []
    for position, node in enumerate(nodes):
        if isinstance(node.layer, RBMHid):
            source = node.sources[0]
            check_rbm_pair(nodes[source], node)
            visible = nodes[source].layer
            assert isinstance(visible, RBMVis)
            added.append(Node(Reconstruction(visible, node.layer), (source, position), nodes[source].params))
    paired = {node.sources[0] for node in added}
    for position, node in enumerate(nodes):
        if isinstance(node.layer, RBMVis) and position not in paired:
            raise node.layer.fail("is the source of no kRBMHid layer", field="srclayers")
    return (*nodes, *added)


def check_rbm_pair(visible: Node, hidden: Node) -> None:
    """Raise JobError unless two layers can be the visible and the hidden side of one RBM."""
    vis, hid = visible.layer, hidden.layer
    if not isinstance(vis, RBMVis):
        raise hid.fail(f"needs a kRBMVis layer as its source, but {hid.source_name(0)} is none", field="srclayers")
    if hid.name not in vis.conf.srclayers:
        raise vis.fail(f"must have its hidden layer, {hid.name!r}, among its srclayers", field="srclayers")
    if visible.params[0] != hidden.params[0]:
        remedy = f"give its first param share_from: {visible.params[0]!r}"
        raise hid.fail(f"has a weight of its own, not that of {vis.name!r}; {remedy}", field="param")
    if vis.conf.rbm_conf and vis.conf.rbm_conf.persistent:
        raise vis.fail("persistent belongs to the hidden layer; set it there", vis.conf.rbm_conf, "persistent")
    for field in ("location", "partition_dim"):
        if getattr(vis.conf, field) != getattr(hid.conf, field):
            raise hid.fail(f"must have the same {field} as {vis.name!r}, the other side of its machine", field=field)


def freeze_other_params(nodes: Sequence[Node], params: Mapping[str, Param]) -> Mapping[str, Param]:
    """Keep params outside RBMs unchanged, by a learning rate of 0: return all params.

    Weight decay alone would shrink them.
    """
    trained = {name for node in nodes if isinstance(node.layer, (RBMVis, RBMHid)) for name in node.params}
    return {
        name: param if name in trained else dataclasses.replace(param, conf=param.conf.replace(lr_scale=0.0))
        for name, param in params.items()
    }
