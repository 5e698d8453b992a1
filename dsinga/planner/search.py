"""The search for the cheapest partitioning: each layer by rows, by features, or whole on one worker (5.4.1).

Layers change their dimension together with the layer with params that they follow, for every other place costs a
transfer and saves nothing. Of these segments, all patterns of two runs are priced, then single changes of the best,
until none is cheaper: "by rows below, by features above" is among the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from dsinga.job import NetConf
from dsinga.net import NeuralNet, choose_cuts
from dsinga.net.cut import WHOLE_LAYER, LayerCut
from dsinga.net.strategy import is_inserted_split

ROWS, FEATURES = 0, 1
WAYS = (ROWS, FEATURES, WHOLE_LAYER)
WORTH = 0.98  # what is not cheaper than so is not worth a change: prices are no more exact
SEARCHED = 8

Pattern = tuple[int, ...]
Price = Callable[[Mapping[str, LayerCut], int], float]


class Search:
    """Finds the cheapest cuts of a net by ``price``, a function of cuts and the number of workers.

    Layers named in ``fixed`` stay as the job says. Equal prices give equal cuts. What has been priced is remembered.
    For more than ``SEARCHED`` workers, what is best for so many is compared with all by rows.
    """

    def __init__(self, net: NeuralNet, price: Price, fixed: Collection[str] = ()):
        self._net, self._price = net, price
        self._inputs, self._segments = segments(net, fixed)
        self._prices: dict[tuple[Pattern, int], float] = {}

    def cuts(self, workers: int) -> dict[str, LayerCut]:
        """Return the cheapest cuts. Raises JobError where layers in ``fixed`` cannot be cut as the job says."""
        return self._cut(self._best(workers), workers)

    def _best(self, workers: int) -> Pattern:
        best = (ROWS,) * len(self._segments)
        if workers == 1:
            return best
        if workers > SEARCHED:
            return self._better(best, [self._best(SEARCHED)], workers)
        best = self._better(best, runs(len(best)), workers)
        while (other := self._better(best, changes(best), workers)) != best:
            best = other
        return best

    def _better(self, best: Pattern, others: Collection[Pattern] | Iterator[Pattern], workers: int) -> Pattern:
        for pattern in others:
            if self._cost(pattern, workers) < WORTH * self._cost(best, workers):
                best = pattern
        return best

    def _cost(self, pattern: Pattern, workers: int) -> float:
        if (pattern, workers) not in self._prices:
            self._prices[pattern, workers] = self._price(self._cut(pattern, workers), workers)
        return self._prices[pattern, workers]

    def _cut(self, pattern: Pattern, workers: int) -> dict[str, LayerCut]:
        wishes = {name: dim for names, dim in zip(self._segments, pattern, strict=True) for name in names}
        # Every worker reads its own rows, unless one worker does everything.
        alone = bool(pattern) and set(pattern) == {WHOLE_LAYER}
        wishes.update(dict.fromkeys(self._inputs, WHOLE_LAYER if alone else ROWS))
        return cut_as(self._net, workers, wishes)


def segments(net: NeuralNet, fixed: Collection[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Return the layers below the first params, and lists of layers that are cut alike, by name.

    The latter are a layer with params, and those without that follow it. Layers in ``fixed`` are left out.
    """
    leaders: list[int | None] = []
    found: dict[int | None, list[str]] = {}
    for position, node in enumerate(net.nodes):
        above = [leader for source in node.sources if (leader := leaders[source]) is not None]
        leaders.append(position if node.params else max(above, default=None))
        if node.layer.name not in fixed and not is_inserted_split(node.layer):
            found.setdefault(leaders[-1], []).append(node.layer.name)
    inputs = found.pop(None, [])
    return inputs, list(found.values())


def runs(count: int) -> Iterator[Pattern]:
    """Yield the patterns of one or two runs: the lower segments in one way, the upper ones in another."""
    yield from ((way,) * count for way in WAYS)
    for boundary in range(1, count):
        for low in WAYS:
            yield from ((low,) * boundary + (high,) * (count - boundary) for high in WAYS if high != low)


def changes(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the patterns that differ from one in a single segment."""
    for k, way in enumerate(pattern):
        yield from ((*pattern[:k], other, *pattern[k + 1 :]) for other in WAYS if other != way)


def cut_as(net: NeuralNet, workers: int, wishes: Mapping[str, int]) -> dict[str, LayerCut]:
    """Return the cuts that come nearest to the wishes: by rows where features are too few, whole where rows are."""
    feasible = dict(wishes)
    for node in net.nodes:
        layer, dim = node.layer, feasible.get(node.layer.name)
        few_rows = layer.shape[0] < workers
        if dim == FEATURES:  # what cannot be cut on features is cut by rows
            whole_rows = len(layer.shape) < 2 or layer.connection is None
            if layer.shape[1:2] < (workers,) or (whole_rows and few_rows):
                dim = ROWS
        if dim == ROWS and few_rows:
            dim = WHOLE_LAYER
        if dim is not None:
            feasible[layer.name] = dim
    return choose_cuts(net, workers, feasible)


def own_layers(conf: NetConf) -> set[str]:
    """Return the names of the layers that say themselves how they are cut or where they are."""
    return {layer.name for layer in conf.layer if layer.partition_dim is not None or layer.location is not None}
