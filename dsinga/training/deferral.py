"""Gradients for params that a worker computes while it waits for sums over all workers of its group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

from dsinga.layers.interface.contract import add_layer_note, check_param_gradients, check_source_gradients
from dsinga.layers.interface.layer import Array, Layer
from dsinga.net import NeuralNet
from dsinga.training.forward_pass import TapeEntry

MOST = 2  # gradients that wait: each keeps a feature and its gradient in memory


class Deferral:
    """Puts gradients for params off until a collective of the pass waits, and pushes them then.

    Args:
        net: the net.
        waiting: what the collectives call (:attr:`Context.meanwhile`).
        push: takes the gradient of a param.
    """

    def __init__(self, net: NeuralNet, waiting: deque[Callable[[], None]], push: Callable[[str, Array], None]):
        self._net, self._waiting, self._push = net, waiting, push

    def source_gradients(self, entry: TapeEntry, grad: Any, begun: AbstractSet[str]) -> Sequence[Array | None] | None:
        """Return the gradients for the sources of a layer, and put off those for its params.

        None where the layer computes both together, or a param has other uses: below, or above, whose gradients have
        ``begun`` to add up.
        """
        stage, params, sources, output, ctx = entry
        layer, names = stage.layer, stage.params
        has_other_uses = set(names) - set(stage.completes) or not begun.isdisjoint(names)
        if not defers(type(layer)) or has_other_uses or not self._net.static.isdisjoint(names):
            return None
        deferred = layer.defer_gradient(params, sources, output, grad, stage.needs, ctx)
        if deferred is None:
            return None
        for_sources, compute = deferred
        check_source_gradients(layer, sources, for_sources)

        def push() -> None:
            try:
                gradients = compute()
                check_param_gradients(layer, params, gradients)
            except Exception as error:
                add_layer_note(error, layer, "compute_gradient")
                raise
            for name, gradient in zip(names, gradients, strict=True):
                self._push(name, gradient)

        self.finish(MOST - 1)
        self._waiting.append(push)
        return for_sources

    def finish(self, left: int = 0) -> None:
        """Compute and push the gradients that wait, the oldest first, until at most ``left`` do."""
        while len(self._waiting) > left:
            self._waiting.popleft()()


@cache
def defers(cls: type[Layer]) -> bool:
    """Whether a class of layers has a ``defer_gradient`` that belongs to its ``compute_gradient``."""
    owner = next(base for base in cls.__mro__ if "compute_gradient" in vars(base))
    return owner is not Layer and "defer_gradient" in vars(owner)
