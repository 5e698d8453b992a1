"""Chooses how each layer of a net is divided over workers: as the job asks, or otherwise with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsinga.cutting.partitioned import FEATURES, ROWS, SPACE, WHOLE_LAYER, LayerCut
from dsinga.layers.interface.declarations import Connection
from dsinga.layers.interface.layer import Layer
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node


def choose_cuts(
    net: NeuralNet,
    parts: int,
    requested: Mapping[str, int | LayerCut] | None = None,
    axes: Mapping[str, int | None] | None = None,
) -> dict[str, LayerCut]:
    """Decide for each layer of ``net`` how ``parts`` workers divide it; return the cuts by name.

    ``requested`` are dimensions or cuts by layer, by default the job's (``location``, else ``partition_dim``). ``axes``
    has the axis on which another phase's net cuts each param, None for uncut params; layers are cut to match.

    A layer that needs whole rows is cut by rows instead of features, with a reason.

    Raises JobError, naming layer and field, for a location beyond the group and for more workers than rows or features.
    """
    cuts: dict[str, LayerCut] = {}
    for node in net.nodes:
        if not is_inserted_split(node.layer):
            dim = (requested or {}).get(node.layer.name)
            cuts[node.layer.name] = _match_params(node, parts, axes or {}) or _cut(node.layer, parts, dim)
    _gather_other_views(net, parts, cuts)
    while _agree_on_params(net, parts, cuts, axes or {}):
        pass
    while _agree_on_state(net, cuts):
        pass
    for node in net.nodes:
        if is_inserted_split(node.layer):
            cuts[node.layer.name] = cuts[node.layer.conf.srclayers[0]]._replace(reason="")
    return cuts


def param_axis(node: Node, index: int, cut: LayerCut) -> int | None:
    """Return the axis on which ``cut`` divides a layer's param, None for a whole one."""
    return node.layer.params[index].cut_axis if cut.dim == FEATURES else None


def is_inserted_split(layer: Layer) -> bool:
    """Whether a layer is a kSplit layer that :func:`insert_splits` has added."""
    return bool(layer.part_shapes) and [layer.name] == [f"split({source})" for source in layer.conf.srclayers]


def _match_params(node: Node, parts: int, axes: Mapping[str, int | None]) -> LayerCut | None:
    if not any(axes.get(name) is not None for name in node.params):
        return None
    cut = _cut(node.layer, parts, FEATURES)
    differs = cut.dim != FEATURES or any(
        axes.get(name) != param_axis(node, k, cut) for k, name in enumerate(node.params)
    )
    if differs:
        names = ", ".join(map(repr, node.params))
        raise node.layer.fail(
            f"training cuts its params ({names}) in another way; give it the partition_dim that it has in training",
            field="partition_dim",
        )
    return cut._replace(reason="" if node.layer.conf.partition_dim == FEATURES else "training cuts its params so")


def _cut(layer: Layer, parts: int, requested: int | LayerCut | None) -> LayerCut:
    """Return the cut that the job asks for a layer, or a possible one with the reason."""
    location, dim, grid = layer.conf.location, layer.conf.partition_dim or ROWS, tuple(layer.conf.partition_grid)
    if isinstance(requested, LayerCut):
        if requested.dim == WHOLE_LAYER:
            return LayerCut(WHOLE_LAYER, requested.location)
        dim, grid = requested.dim, requested.grid
    elif requested is not None:
        dim = requested
    elif location is not None:
        if location >= parts:
            raise layer.fail(f"location {location} is beyond the group's {parts} workers", field="location")
        return LayerCut(WHOLE_LAYER, location)
    if dim == WHOLE_LAYER:
        return LayerCut(WHOLE_LAYER)
    if dim >= SPACE:
        return _cut_by_space(layer, parts, dim, grid)
    reason = _gathered_because(layer) if dim == FEATURES else ""
    if dim == FEATURES and not reason:
        _check_length(layer, layer.shape[layer.cut.axis], parts, "features")
        _check_groups(layer, parts)
        return LayerCut(FEATURES)
    if layer.cut.whole_because:
        return LayerCut(WHOLE_LAYER, reason=layer.cut.whole_because)
    _check_length(layer, layer.shape[0], parts, "rows")
    return LayerCut(ROWS, reason=reason)


def _cut_by_space(layer: Layer, parts: int, dim: int, grid: tuple[int, ...]) -> LayerCut:
    """Return a layer's cut by space or, with the reason, by rows, or whole if there are too few rows."""
    if parts == 1:
        grid = (1,) * len(grid)
    if grid and math.prod(grid) != parts:
        raise layer.fail(
            f"partition_grid {' x '.join(map(str, grid))} is for {math.prod(grid)} workers, but the group has {parts}",
            field="partition_grid",
        )
    grid = grid or (parts,)
    reason = space_fault(layer, dim, grid)
    if not reason:
        return LayerCut(dim, grid=grid)
    return _gathered(layer, parts, reason)


def _gathered(layer: Layer, parts: int, reason: str) -> LayerCut:
    if layer.cut.whole_because or layer.shape[0] < parts:
        return LayerCut(WHOLE_LAYER, reason=layer.cut.whole_because or f"{reason}, and the batch has too few rows")
    return LayerCut(ROWS, reason=reason)


def space_fault(layer: Layer, dim: int, grid: Sequence[int]) -> str:
    """Return why a layer cannot be cut by space into ``grid`` parts along the axes from ``dim``, or ""."""
    if not layer.cut.by_space:
        return layer.cut.gathered_because if layer.cut.connection is None else "needs all points of a row"
    if reason := layer.gathers_points_because():
        return reason
    axes = range(dim, dim + len(grid))
    sources = [shape for k, shape in enumerate(layer.source_shapes) if layer.takes_points(k)]
    field = layer.field_shape
    if len(field) <= axes[-1]:
        return f"has no dimension {axes[-1]}"
    if any(len(shape) != len(field) for shape in sources):
        return "has other axes than its source"
    for axis, parts in zip(axes, grid, strict=True):
        if min(shape[axis] for shape in (field, *sources)) < parts:
            return f"has fewer points along dimension {axis} than workers"
    return ""


def _gathered_because(layer: Layer) -> str:
    if layer.cut.connection is None:
        return layer.cut.gathered_because
    axis = layer.cut.axis
    if len(layer.shape) <= axis:
        return "has one number a row"
    if any(not spec.trainable and spec.cut_axis is None for spec in layer.params):
        return "keeps a state of all features"
    widths = {shape[axis : axis + 1] for k, shape in enumerate(layer.source_shapes) if k != layer.labels.source}
    if layer.cut.connection is Connection.kOneToOne and widths != {layer.shape[axis : axis + 1]}:
        return "has another number of features than its source"
    return ""


def _check_length(layer: Layer, length: int, parts: int, noun: str) -> None:
    if length < parts:
        raise layer.fail(
            f"has {length} {noun}, which cannot be cut over {parts} workers; use fewer workers or blocks, or "
            "partition_dim: -1 to compute it on one of them",
            field="partition_dim",
        )


def _check_groups(layer: Layer, parts: int) -> None:
    if layer.cut.groups % parts:
        setting = next(name for name in ("num_heads", "groups", "group") if hasattr(layer.settings, name))
        noun = "heads" if setting == "num_heads" else "groups"
        raise layer.fail(
            f"has {layer.cut.groups} {noun}, which cannot be cut over {parts} workers; give it a {setting} that "
            f"{parts} divides, or partition_dim: 0",
            field="partition_dim",
        )


def _gather_other_views(net: NeuralNet, parts: int, cuts: dict[str, LayerCut]) -> None:
    """Gather layers with a feature without points, such as losses, if other layers use the feature."""
    for node in net.nodes:
        for source in node.sources:
            layer = net.nodes[source].layer
            if layer.field_shape != layer.shape and cuts[layer.name].grid:
                cuts[layer.name] = _gathered(layer, parts, "gives its feature to other layers")


def _agree_on_params(net: NeuralNet, parts: int, cuts: dict[str, LayerCut], axes: Mapping[str, int | None]) -> bool:
    """Cut layers by rows if others cut their shared params otherwise; return whether any changed."""
    param_axes = {name: {axis} for name, axis in axes.items()}
    for node in net.nodes:
        for k, name in enumerate(node.params):
            param_axes.setdefault(name, set()).add(param_axis(node, k, cuts[node.layer.name]))
    changed = False
    for node in net.nodes:
        layer = node.layer
        conflicts = [name for name in node.params if len(param_axes[name]) > 1]
        if conflicts and cuts[layer.name].dim == FEATURES:
            cuts[layer.name] = _cut(layer, parts, ROWS)._replace(
                reason=f"training leaves its param {conflicts[0]!r} whole"
                if conflicts[0] in axes
                else f"shares its param {conflicts[0]!r} with a layer that is not cut alike"
            )
            changed = True
    return changed


def _agree_on_state(net: NeuralNet, cuts: dict[str, LayerCut]) -> bool:
    """Move layers that share state but no cut to one worker; return whether any moved.

    Workers push shares of the new state by their rows, which must add up to one state.
    """
    users: dict[str, list[str]] = {}
    for node in net.nodes:
        for spec, name in zip(node.layer.params, node.params, strict=True):
            if not spec.trainable:
                users.setdefault(name, []).append(node.layer.name)
    changed = False
    for name, layers in users.items():
        if len({cuts[layer]._replace(reason="") for layer in layers}) > 1:
            whole = (cuts[layer].location for layer in layers if cuts[layer].dim == WHOLE_LAYER)
            location = next(whole, 0)
            reason = f"shares its state {name!r} with a layer that is not cut alike"
            for layer in layers:
                if cuts[layer][:2] != (WHOLE_LAYER, location):
                    cuts[layer] = LayerCut(WHOLE_LAYER, location, reason)
            changed = True
    return changed
