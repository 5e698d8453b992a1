"""Recomputation: features that are freed after the forward pass and computed again when the backward pass needs them.

Layers with ``recompute`` in the job are computed a second time, from the nearest features below that are kept, with the
same params and random numbers, so that the gradients have the same bits. Sums and rows that came from other workers the
first time are kept, as they are small: nothing is sent again. Lasting state, labels and metrics are those of the first
pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
"""

from __future__ import annotations

from typing import Any

from dsinga.layers.interface.context import PassObserver
from dsinga.layers.interface.contract import add_layer_note
from dsinga.net import NeuralNet
from dsinga.net.dataflow import WHOLE_FEATURE
from dsinga.training.forward_pass import TapeEntry, sources_of_layer


class Recomputation:
    """The features of a tape that have been freed, and computes them again. For one forward and backward pass."""

    def __init__(self, net: NeuralNet, observer: PassObserver | None):
        self._net, self._observer = net, observer
        self._freed = [stage.recompute for stage in net.stages]

    def free(self, entry: TapeEntry) -> TapeEntry:
        """Return a new entry of the tape without the features that can be computed again."""
        stage, params, sources, output, ctx = entry
        stages = self._net.stages
        if stage.edges:
            again = [stages[edge.node].recompute and not edge.labels for edge in stage.edges]
            sources = [None if freed else source for freed, source in zip(again, sources, strict=True)]
        if stage.recompute:
            output = output._replace(feature=None, saved=None)
        return TapeEntry(stage, params, sources, output, ctx)

    def restore(self, tape: list[TapeEntry]) -> None:
        """Compute the freed features that the tape's last entry needs, and those below from which they are computed."""
        needed, pending = set[int](), [len(tape) - 1]
        while pending:
            position = pending.pop()
            if position not in needed:
                needed.add(position)
                pending += [node for node in self._sources(position) if self._freed[node]]
        for position in sorted(needed):
            entry = tape[position]._replace(sources=self._filled(tape, position))
            tape[position] = self._computed(entry) if self._freed[position] else entry
            self._freed[position] = False

    def _sources(self, position: int) -> list[int]:
        """Return the sources of a layer that are recomputed."""
        stages = self._net.stages
        return [edge.node for edge in stages[position].edges if stages[edge.node].recompute and not edge.labels]

    def _filled(self, tape: list[TapeEntry], position: int) -> list[Any]:
        """Return the sources of an entry, with the features that it lacked."""
        stage, _, sources, _, ctx = tape[position]
        sources = list(sources)
        for k, edge in enumerate(stage.edges):
            if self._net.stages[edge.node].recompute and not edge.labels:
                feature = tape[edge.node].output.feature
                feature = feature if edge.part == WHOLE_FEATURE else feature[edge.part]
                sources[k : k + 1] = sources_of_layer(stage.layer, [feature], ctx)
        return sources

    def _computed(self, entry: TapeEntry) -> TapeEntry:
        stage, params, sources, output, ctx = entry
        layer, compute = stage.layer, stage.layer.compute_feature
        try:
            if self._observer is None:
                again = compute(params, sources, ctx)
            else:
                again = self._observer(layer, "forward", compute, params, sources, ctx)
        except Exception as error:
            add_layer_note(error, layer, "compute_feature")
            raise
        return entry._replace(output=output._replace(feature=again.feature, saved=again.saved))
