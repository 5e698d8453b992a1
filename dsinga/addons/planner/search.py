"""The search for the cheapest partitioning: each layer by rows, by features, or whole on one worker (section 5.4.1).

Layers without params are cut like the layer with params that they follow. The search prices all patterns of these
blocks that change the cut at most once, such as "by rows below, by features above". Then it changes single blocks of
the best pattern until the price no longer falls. In nets of more than MAX_BLOCKS blocks it tries MAX_BOUNDARIES places,
and changes alike blocks together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from dsinga.cutting.partitioned import FEATURES, ROWS, SPACE, WHOLE_LAYER, LayerCut
from dsinga.cutting.strategy import choose_cuts, is_inserted_split, space_fault
from dsinga.job import NetConf
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet
from dsinga.net.layer_cost import layer_cost
from dsinga.training import Updater

DIMS = (ROWS, FEATURES, WHOLE_LAYER)
MIN_GAIN = 0.98  # a change must lower the price to this share of it: prices are no more accurate
MAX_SEARCHED_WORKERS = 8
MAX_BLOCKS = 16  # of a net that is searched block by block
MAX_BOUNDARIES = 8  # between the two runs of a deeper net
MAX_SEARCHED_WORKERS_DEEP = 4  # of a deeper net

Pattern = tuple[int, ...]  # the dimension of each block
Price = Callable[[Mapping[str, LayerCut], int], float]


class Search:
    """Finds the cheapest cuts of a net by ``price``, a function of the cuts and the number of workers.

    Layers in ``fixed`` stay as the job says. Equal prices give equal cuts. For more than MAX_SEARCHED_WORKERS workers
    (deep nets: MAX_SEARCHED_WORKERS_DEEP), it compares only that number's best cut with the net cut by rows.
    """

    def __init__(self, net: NeuralNet, price: Price, fixed: Collection[str] = ()):
        self._net, self._price = net, price
        self._inputs, self._blocks = layer_blocks(net, fixed)
        self._prices: dict[tuple[Pattern, int], float] = {}
        self._found: dict[int, Pattern] = {}  # by number of workers
        deep = len(self._blocks) > MAX_BLOCKS
        self._most_workers = MAX_SEARCHED_WORKERS_DEEP if deep else MAX_SEARCHED_WORKERS
        self._boundaries = boundaries(len(self._blocks), MAX_BOUNDARIES if deep else MAX_BLOCKS)
        self._together = alike_blocks(net, self._blocks) if deep else [[k] for k in range(len(self._blocks))]

    def cuts(self, workers: int) -> dict[str, LayerCut]:
        """Return the cheapest cuts of the net by layer, for ``workers`` workers."""
        if workers not in self._found:
            self._found[workers] = self._best(workers)
        return self._cut(self._found[workers], workers)

    def _best(self, workers: int) -> Pattern:
        best = (ROWS,) * len(self._blocks)
        if workers == 1:
            return best
        if workers > self._most_workers:
            self.cuts(self._most_workers)
            return self._cheapest(best, [self._found[self._most_workers]], workers)
        best = self._cheapest(best, patterns_of_two_runs(len(best), self._boundaries), workers)
        while (cheaper := self._cheapest(best, changes(best, self._together), workers)) != best:
            best = cheaper
        return best

    def _cheapest(self, best: Pattern, candidates: Collection[Pattern] | Iterator[Pattern], workers: int) -> Pattern:
        for pattern in candidates:
            if self._cost(pattern, workers) < MIN_GAIN * self._cost(best, workers):
                best = pattern
        return best

    def _cost(self, pattern: Pattern, workers: int) -> float:
        if (pattern, workers) not in self._prices:
            self._prices[pattern, workers] = self._price(self._cut(pattern, workers), workers)
        return self._prices[pattern, workers]

    def _cut(self, pattern: Pattern, workers: int) -> dict[str, LayerCut]:
        dims = {name: dim for names, dim in zip(self._blocks, pattern, strict=True) for name in names}
        # Every worker reads its own rows, unless one worker computes everything.
        on_one_worker = bool(pattern) and set(pattern) == {WHOLE_LAYER}
        dims.update(dict.fromkeys(self._inputs, WHOLE_LAYER if on_one_worker else ROWS))
        return cuts_for_dims(self._net, workers, dims)


def layer_blocks(net: NeuralNet, fixed: Collection[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Group layers that are cut alike into blocks; also return the layers below the first params.

    A block is a layer with params and the layers without params that follow it.
    """
    leaders: list[int | None] = []  # of each node: the position of its block's first layer
    blocks: dict[int | None, list[str]] = {}
    for position, node in enumerate(net.nodes):
        source_leaders = [leader for source in node.sources if (leader := leaders[source]) is not None]
        leaders.append(position if node.params else max(source_leaders, default=None))
        if node.layer.name not in fixed and not is_inserted_split(node.layer):
            blocks.setdefault(leaders[-1], []).append(node.layer.name)
    inputs = blocks.pop(None, [])
    return inputs, list(blocks.values())


def boundaries(count: int, most: int) -> list[int]:
    """Return the places at which a pattern of ``count`` blocks may change: all, or ``most`` evenly spread ones."""
    if count <= most:
        return list(range(1, count))
    return [number * count // (most + 1) for number in range(1, most + 1)]


def alike_blocks(net: NeuralNet, blocks: Sequence[Sequence[str]]) -> list[list[int]]:
    """Group the numbers of the blocks with the same types and shapes of layers."""
    together: dict[Hashable, list[int]] = {}
    for number, block in enumerate(blocks):
        layers = [net.layer(name) for name in block]
        kind = tuple((layer.conf.type_name, layer.shape, *(spec.shape for spec in layer.params)) for layer in layers)
        together.setdefault(kind, []).append(number)
    return list(together.values())


def patterns_of_two_runs(count: int, places: Sequence[int]) -> Iterator[Pattern]:
    """Yield the patterns of ``count`` blocks cut alike, or alike below and above one of ``places``."""
    yield from ((dim,) * count for dim in DIMS)
    for boundary in places:
        for low in DIMS:
            yield from ((low,) * boundary + (high,) * (count - boundary) for high in DIMS if high != low)


def changes(pattern: Pattern, together: Sequence[Collection[int]]) -> Iterator[Pattern]:
    """Yield the patterns that differ from ``pattern`` in one of the groups ``together``."""
    for group in together:
        for dim in DIMS:
            changed = tuple(dim if number in group else before for number, before in enumerate(pattern))
            if changed != pattern:
                yield changed


def cuts_for_dims(net: NeuralNet, workers: int, dims: Mapping[str, int]) -> dict[str, LayerCut]:
    """Cut layers along the requested dimensions, or as near as possible.

    A layer is cut by rows if workers exceed its features or do not divide its groups of features.
    """
    feasible = dict(dims)
    for node in net.nodes:
        layer, dim = node.layer, feasible.get(node.layer.name)
        few_rows = layer.shape[0] < workers
        if dim == FEATURES:
            axis = layer.cut.axis
            needs_whole_rows = len(layer.shape) <= axis or layer.cut.connection is None
            too_few = layer.shape[axis : axis + 1] < (workers,) or layer.cut.groups % workers
            if too_few or (needs_whole_rows and few_rows):
                dim = ROWS
        if dim == ROWS and few_rows:
            dim = WHOLE_LAYER
        if dim is not None:
            feasible[layer.name] = dim
    return choose_cuts(net, workers, feasible)


def explicitly_cut_layers(conf: NetConf) -> set[str]:
    """Return the names of the layers with a partition_dim or a location."""
    return {layer.name for layer in conf.layer if layer.partition_dim is not None or layer.location is not None}


def layers_with_whole_params(net: NeuralNet, updater: Updater) -> set[str]:
    """Return the layers that may not be cut by features, because the updater needs whole params."""
    params = net.params
    whole = {name for name, param in params.items() if param.trainable and updater.of(name, param.shape).whole}
    return {node.layer.name for node in net.nodes if whole.intersection(node.params)}


WORDS = {ROWS: "rows", FEATURES: "features"}  # SPACE and above: "space"


def by_rows(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Cut for data parallelism: every layer on dimension 0."""
    return cuts_for_dims(net, workers, dict.fromkeys(_names(net), ROWS))


def by_features(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Cut for model parallelism: from the first layer with params up, on dimension 1."""
    inputs, blocks = layer_blocks(net)
    dims = dict.fromkeys((name for block in blocks for name in block), FEATURES)
    return cuts_for_dims(net, workers, {**dict.fromkeys(inputs, ROWS), **dims})


def hybrid(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Cut as Krizhevsky (2014): by rows below the first fully connected layer, then by features."""
    _, blocks = layer_blocks(net)
    upper = {name for block in blocks if len(net.layer(block[0]).shape) == 2 for name in block}
    return cuts_for_dims(net, workers, {name: FEATURES if name in upper else ROWS for name in _names(net)})


def by_layer(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Place whole consecutive layers on workers, with about equal operations."""
    costs = [sum(layer_cost(node.layer)[:2]) for node in net.nodes]
    total, done = sum(costs), 0
    cuts = {}
    for node, cost in zip(net.nodes, costs, strict=True):
        location = min(workers - 1, (2 * done + cost) * workers // (2 * total))
        cuts[node.layer.name] = LayerCut(WHOLE_LAYER, location)
        done += cost
    return cuts


def by_space(net: NeuralNet, workers: int) -> dict[str, LayerCut]:
    """Cut fields into stripes: every layer that allows it on dimension 2."""
    return choose_cuts(net, workers, dict.fromkeys(_names(net), LayerCut(SPACE, grid=(workers,))))


def has_fields(net: NeuralNet, workers: int) -> bool:
    """Whether a net can be cut by space from input to loss, because its targets are fields."""
    return _any_by_space([node.layer for node in net.nodes if node.layer.is_loss], workers)


def few_rows(net: NeuralNet, workers: int) -> bool:
    """Whether a batch has fewer rows than workers."""
    return net.nodes[0].layer.shape[0] < workers


def has_space(net: NeuralNet, workers: int) -> bool:
    """Whether cutting by space is worthwhile: targets are fields, or a batch has too few rows."""
    if not few_rows(net, workers):
        return has_fields(net, workers)
    return has_fields(net, workers) or _any_by_space([node.layer for node in net.nodes if node.params], workers)


def _any_by_space(layers: Iterable[Layer], workers: int) -> bool:
    return any(not space_fault(layer, SPACE, (workers,)) for layer in layers)


def describe_cuts(net: NeuralNet, cuts: Mapping[str, LayerCut]) -> str:
    """Describe the cuts in the order of the layers: "rows: data to pool5, features: fc6 to fc8"."""
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
