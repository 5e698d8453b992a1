"""Restricted Boltzmann machines in a net: their two sides joined, what they reconstruct, what is not trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from dsinga.job import LayerConf, Phase
from dsinga.layers.rbm import RBMHid, RBMVis, Reconstruction
from dsinga.net.node import Node
from dsinga.net.param import Param


def insert_reconstructions(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Put a layer ``reconstruction(<visible layer>)`` behind each restricted Boltzmann machine, at the end of the net.

    SINGA's edge from the hidden layer back to the visible one, which makes a cycle, becomes the edge to this layer: it
    has the visible layer's params. Raises JobError where the two sides do not belong together.
    """
    added = []
    for position, node in enumerate(nodes):
        if isinstance(node.layer, RBMHid):
            source = node.sources[0]
            check_pair(nodes[source], node)
            visible = nodes[source].layer
            assert isinstance(visible, RBMVis)
            added.append(Node(Reconstruction(visible, node.layer), (source, position), nodes[source].params))
    paired = {node.sources[0] for node in added}
    for position, node in enumerate(nodes):
        if isinstance(node.layer, RBMVis) and position not in paired:
            raise node.layer.fail("is the source of no kRBMHid layer", field="srclayers")
    return (*nodes, *added)


def settle_chains(layer: LayerConf, phase: Phase) -> LayerConf:
    """Return the layer without persistent chains in other phases than training, which alone knows its rows."""
    if phase is Phase.kTrain or layer.rbm_conf is None or not layer.rbm_conf.persistent:
        return layer
    return layer.replace(rbm_conf=layer.rbm_conf.replace(persistent=False))


def check_pair(visible: Node, hidden: Node) -> None:
    """Raise JobError unless two nodes are the two sides of one restricted Boltzmann machine."""
    one, other = visible.layer, hidden.layer
    if not isinstance(one, RBMVis):
        raise other.fail(f"takes a kRBMVis layer of its own; {other.source_name(0)} is none", field="srclayers")
    if other.name not in one.conf.srclayers:
        raise one.fail(f"must have its hidden layer, {other.name!r}, among its srclayers", field="srclayers")
    if visible.params[0] != hidden.params[0]:
        remedy = f"let its first param have share_from: {visible.params[0]!r}"
        raise other.fail(f"has a weight of its own, not that of {one.name!r}; {remedy}", field="param")
    if one.conf.rbm_conf and one.conf.rbm_conf.persistent:
        raise one.fail("persistent is a matter of the hidden layer; say it there", one.conf.rbm_conf, "persistent")
    for field in ("location", "partition_dim"):
        if getattr(one.conf, field) != getattr(other.conf, field):
            raise other.fail(f"must have the {field} of {one.name!r}, the other side of its machine", field=field)


def freeze_others(nodes: Sequence[Node], params: Mapping[str, Param]) -> Mapping[str, Param]:
    """Return the params with a learning rate of 0 for those that no restricted Boltzmann machine has.

    Contrastive divergence finds no gradient for them; weight decay alone would wear them away.
    """
    machines = [node for node in nodes if isinstance(node.layer, (RBMVis, RBMHid))]
    if not machines:
        return params
    own = {name for node in machines for name in node.params}
    return {
        name: param if name in own else dataclasses.replace(param, conf=param.conf.replace(lr_scale=0.0))
        for name, param in params.items()
    }
