"""The partitionings that the paper names (5.3), as cuts of a net."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsinga.net import NeuralNet
from dsinga.net.cut import WHOLE_LAYER, LayerCut
from dsinga.planner.cost import layer_cost
from dsinga.planner.search import FEATURES, ROWS, cut_as, segments

WORDS = {ROWS: "rows", FEATURES: "features"}


def by_rows(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return data parallelism: every layer on dimension 0."""
    return cut_as(net, workers, dict.fromkeys(_names(net), ROWS))


def by_features(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return model parallelism: every layer with params, and what follows it, on dimension 1."""
    inputs, parts = segments(net)
    wishes = dict.fromkeys((name for part in parts for name in part), FEATURES)
    return cut_as(net, workers, {**dict.fromkeys(inputs, ROWS), **wishes})


def hybrid(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return Krizhevsky's (2014): rows below the first fully connected layer, features from there on."""
    _, parts = segments(net)
    above = {name for part in parts if len(net.layer(part[0]).shape) == 2 for name in part}
    return cut_as(net, workers, {name: FEATURES if name in above else ROWS for name in _names(net)})


def by_layer(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Return whole layers on different workers: neighbours together, about as many operations on each."""
    costs = [sum(layer_cost(node.layer)[:2]) for node in net.nodes]
    total, done = sum(costs), 0
    cuts = {}
    for node, cost in zip(net.nodes, costs, strict=True):
        location = min(workers - 1, (2 * done + cost) * workers // (2 * total))
        cuts[node.layer.name] = LayerCut(WHOLE_LAYER, location)
        done += cost
    return cuts


def in_words(net: NeuralNet, cuts: Mapping[str, LayerCut]) -> str:
    """Return how a net is cut, in the order of its layers: "rows: data to pool5, features: fc6 to fc8"."""
    runs: list[list[str]] = []
    for name in _names(net):
        cut = cuts[name]
        word = WORDS.get(cut.dim, f"worker {cut.location}")
        if runs and runs[-1][0] == word:
            runs[-1].append(name)
        else:
            runs.append([word, name])
    return ", ".join(f"{word}: {names[0]}{_to(names)}" for word, *names in runs)


def _to(names: list[str]) -> str:
    return f" to {names[-1]}" if len(names) > 1 else ""


def _names(net: NeuralNet) -> Iterable[str]:
    return (node.layer.name for node in net.nodes)
