"""The partitionings that the paper names (section 5.3), as cuts of a net."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsinga.addons.planner.search import cuts_for_dims, layer_blocks
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet, choose_cuts
from dsinga.net.cut import FEATURES, ROWS, SPACE, WHOLE_LAYER, LayerCut
from dsinga.net.layer_cost import layer_cost
from dsinga.net.strategy import space_fault

WORDS = {ROWS: "rows", FEATURES: "features"}  # from SPACE on: "space"


def by_rows(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return the cuts of data parallelism: every layer on dimension 0."""
    return cuts_for_dims(net, workers, dict.fromkeys(_names(net), ROWS))


def by_features(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return the cuts of model parallelism: every layer from the first one with params on, on dimension 1."""
    inputs, blocks = layer_blocks(net)
    dims = dict.fromkeys((name for block in blocks for name in block), FEATURES)
    return cuts_for_dims(net, workers, {**dict.fromkeys(inputs, ROWS), **dims})


def hybrid(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return the cuts of Krizhevsky (2014): by rows below the first fully connected layer, by features from there."""
    _, blocks = layer_blocks(net)
    upper = {name for block in blocks if len(net.layer(block[0]).shape) == 2 for name in block}
    return cuts_for_dims(net, workers, {name: FEATURES if name in upper else ROWS for name in _names(net)})


def by_layer(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return whole layers on different workers: consecutive layers together, about as many operations on each."""
    costs = [sum(layer_cost(node.layer)[:2]) for node in net.nodes]
    total, done = sum(costs), 0
    cuts = {}
    for node, cost in zip(net.nodes, costs, strict=True):
        location = min(workers - 1, (2 * done + cost) * workers // (2 * total))
        cuts[node.layer.name] = LayerCut(WHOLE_LAYER, location)
        done += cost
    return cuts


def by_space(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return the cuts of fields into stripes: every layer on dimension 2 that can be cut so."""
    return choose_cuts(net, workers, dict.fromkeys(_names(net), LayerCut(SPACE, grid=(workers,))))


def has_fields(net: NeuralNet, workers: int) -> bool:
    """Whether a net can be cut by space from its input to a loss, because its targets are fields."""
    return _any_by_space([node.layer for node in net.nodes if node.layer.is_loss], workers)


def few_rows(net: NeuralNet, workers: int) -> bool:
    """Whether a batch has fewer rows than there are workers."""
    return net.nodes[0].layer.shape[0] < workers


def has_space(net: NeuralNet, workers: int) -> bool:
    """Whether it is worth while to cut a net by space: its targets are fields, or its batch has too few rows.

    In the second case layers with params must have as many points as there are workers.
    """
    if not few_rows(net, workers):
        return has_fields(net, workers)
    return has_fields(net, workers) or _any_by_space([node.layer for node in net.nodes if node.params], workers)


def _any_by_space(layers: Iterable[Layer], workers: int) -> bool:
    return any(not space_fault(layer, SPACE, (workers,)) for layer in layers)


def describe_cuts(net: NeuralNet, cuts: Mapping[str, LayerCut]) -> str:
    """Return the cuts as text, in the order of the layers: "rows: data to pool5, features: fc6 to fc8"."""
    runs: list[list[str]] = []
    for name in _names(net):
        cut = cuts[name]
        word = "space" if cut.grid else WORDS.get(cut.dim, f"worker {cut.location}")
        if runs and runs[-1][0] == word:
            runs[-1].append(name)
        else:
            runs.append([word, name])
    return ", ".join(f"{word}: {names[0]}{_to(names)}" for word, *names in runs)


def _to(names: list[str]) -> str:
    return f" to {names[-1]}" if len(names) > 1 else ""


def _names(net: NeuralNet) -> Iterable[str]:
    return (node.layer.name for node in net.nodes)
