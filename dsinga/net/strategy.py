"""How each layer of a net is cut: as the job says, unless the layer cannot be; then with the reason."""

from __future__ import annotations

from collections.abc import Mapping

from dsinga.layers.base import Connection, Layer
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node
from dsinga.net.partitioned import FEATURES, ROWS, WHOLE_LAYER, Cut


def choose_cuts(
    net: NeuralNet,
    parts: int,
    wishes: Mapping[str, int] | None = None,
    axes: Mapping[str, int | None] | None = None,
) -> dict[str, Cut]:
    """Return how each layer of ``net`` is cut for ``parts`` workers, by name, with the reason where not as wished.

    ``wishes`` are dimensions by layer; by default those of the job: a layer's ``location``, else its
    ``partition_dim``. Features of layers that need whole rows are gathered: they are cut by rows instead. ``axes`` says
    how another phase has cut the params: param to axis, None for whole ones; layers that use them follow.

    Raises JobError, naming layer and field, for a location beyond the group and for more workers than rows or features.
    """
    cuts: dict[str, Cut] = {}
    for node in net.nodes:
        if not is_inserted_split(node.layer):
            wish = (wishes or {}).get(node.layer.name)
            cuts[node.layer.name] = _follow(node, parts, axes or {}) or _cut(node.layer, parts, wish)
    while _agree_on_params(net, parts, cuts, axes or {}):
        pass
    while _agree_on_state(net, cuts):
        pass
    for node in net.nodes:
        if is_inserted_split(node.layer):
            cuts[node.layer.name] = cuts[node.layer.conf.srclayers[0]]._replace(because="")
    return cuts


def param_axis(node: Node, index: int, cut: Cut) -> int | None:
    """Return the axis along which a layer that is cut so wants its param of this index cut, None for whole."""
    return node.layer.params[index].cut_axis if cut.dim == FEATURES else None


def is_inserted_split(layer: Layer) -> bool:
    """Whether this is a kSplit layer that :func:`insert_splits` has put in."""
    return layer.hands_parts and [layer.name] == [f"split({source})" for source in layer.conf.srclayers]


def _follow(node: Node, parts: int, axes: Mapping[str, int | None]) -> Cut | None:
    """Return the cut on features where the params of a layer are cut already."""
    if not any(axes.get(name) is not None for name in node.params):
        return None
    cut = _cut(node.layer, parts, FEATURES)
    wrong = cut.dim != FEATURES or any(axes.get(name) != param_axis(node, k, cut) for k, name in enumerate(node.params))
    if wrong:
        names = ", ".join(map(repr, node.params))
        raise node.layer.fail(
            f"training cuts its params ({names}) otherwise; give it the partition_dim that it has in training",
            field="partition_dim",
        )
    return cut._replace(because="" if node.layer.conf.partition_dim == FEATURES else "training cuts its params so")


def _cut(layer: Layer, parts: int, wish: int | None) -> Cut:
    location, dim = layer.conf.location, layer.conf.partition_dim or ROWS
    if wish is not None:
        dim = wish
    elif location is not None:
        if location >= parts:
            raise layer.fail(f"location {location} is beyond the group's {parts} workers", field="location")
        return Cut(WHOLE_LAYER, location)
    if dim == WHOLE_LAYER:
        return Cut(WHOLE_LAYER)
    because = _gathered_because(layer) if dim == FEATURES else ""
    if dim == FEATURES and not because:
        _check_length(layer, layer.shape[1], parts, "features")
        return Cut(FEATURES)
    if layer.whole_because:
        return Cut(WHOLE_LAYER, because=layer.whole_because)
    _check_length(layer, layer.shape[0], parts, "rows")
    return Cut(ROWS, because=because)


def _gathered_because(layer: Layer) -> str:
    """Return why a layer cannot be cut on features, or the empty string."""
    if layer.connection is None:
        return layer.gathered_because
    if len(layer.shape) < 2:
        return "has one number a row"
    if any(not spec.trainable and spec.cut_axis is None for spec in layer.params):
        return "keeps a state of all features"
    widths = {shape[1:2] for k, shape in enumerate(layer.source_shapes) if k != layer.label_source}
    if layer.connection is Connection.kOneToOne and widths != {layer.shape[1:2]}:
        return "has another number of features than its source"
    return ""


def _check_length(layer: Layer, length: int, parts: int, what: str) -> None:
    if length < parts:
        raise layer.fail(
            f"has {length} {what}, which cannot be cut over {parts} workers; use fewer workers, or partition_dim: -1 "
            "to compute it on one of them",
            field="partition_dim",
        )


def _agree_on_params(net: NeuralNet, parts: int, cuts: dict[str, Cut], axes: Mapping[str, int | None]) -> bool:
    """Gather the layers whose params another layer, or training, wants cut otherwise; return whether there were any."""
    wanted = {name: {axis} for name, axis in axes.items()}
    for node in net.nodes:
        for k, name in enumerate(node.params):
            wanted.setdefault(name, set()).add(param_axis(node, k, cuts[node.layer.name]))
    changed = False
    for node in net.nodes:
        layer = node.layer
        torn = [name for name in node.params if len(wanted[name]) > 1]
        if torn and cuts[layer.name].dim == FEATURES:
            cuts[layer.name] = _cut(layer, parts, ROWS)._replace(
                because=f"training leaves its param {torn[0]!r} whole"
                if torn[0] in axes
                else f"shares its param {torn[0]!r} with a layer that is not cut alike"
            )
            changed = True
    return changed


def _agree_on_state(net: NeuralNet, cuts: dict[str, Cut]) -> bool:
    """Put layers that share a lasting param and are not cut alike where the first whole one is; return if there were.

    Workers push their shares of the new state, by their rows: if one had all rows and another some, or all as well,
    the shares would add up to more than one state.
    """
    users: dict[str, list[str]] = {}
    for node in net.nodes:
        for spec, name in zip(node.layer.params, node.params, strict=True):
            if not spec.trainable:
                users.setdefault(name, []).append(node.layer.name)
    changed = False
    for name, layers in users.items():
        if len({(cuts[layer].dim, cuts[layer].location) for layer in layers}) > 1:
            location = next(cuts[layer].location for layer in layers if cuts[layer].dim == WHOLE_LAYER)
            because = f"shares its state {name!r} with a layer that is not cut alike"
            for layer in layers:
                if cuts[layer][:2] != (WHOLE_LAYER, location):
                    cuts[layer] = Cut(WHOLE_LAYER, location, because)
            changed = True
    return changed
