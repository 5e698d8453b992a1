"""What an iteration will cost: a net, its cuts, a cluster that may not be there, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from dsinga.net import NeuralNet, partition
from dsinga.net.cut import LayerCut
from dsinga.planner.hosts import Hosts
from dsinga.planner.link import Links
from dsinga.planner.machine import Machine
from dsinga.planner.simulate import Prediction, simulate
from dsinga.planner.sketch import sketch
from dsinga.planner.strategies import by_features, by_rows
from dsinga.planner.translate import translate

EXACT_WORKERS = 8  # up to so many the net is partitioned as a run would do it, beyond it is sketched


@dataclass(frozen=True)
class Forecast:
    """Prices partitionings of ``net``; ``machine`` and ``hosts`` are functions of the number of workers."""

    net: NeuralNet
    machine: Callable[[int], Machine]
    links: Links
    hosts: Callable[[int], Hosts]

    @cached_property
    def _machines(self) -> Callable[[int], Machine]:
        return cache(self.machine)

    def predict(self, cuts: Mapping[str, LayerCut], workers: int, overlap: bool = True) -> Prediction:
        """Return what an iteration costs."""
        if workers <= EXACT_WORKERS:
            group = translate(partition(self.net, workers, cuts=cuts), self.hosts(workers), self._machines(workers))
        else:
            group = sketch(self.net, cuts, self.hosts(workers), self._machines(workers))
        return simulate(group, self.links, overlap)

    def price(self, cuts: Mapping[str, LayerCut], workers: int) -> float:
        """Return the seconds of an iteration, sketched: quick, for a search."""
        return simulate(sketch(self.net, cuts, self.hosts(workers), self._walked(workers)), self.links).seconds

    @cached_property
    def _walked(self) -> Callable[[int], Machine]:
        return cache(self._walk)

    def _walk(self, workers: int) -> Machine:
        """Return the machine, which has walked through the nets that are all by rows and all by features."""
        machine = self._machines(workers)
        if workers <= EXACT_WORKERS:
            for way in (by_rows, by_features):
                machine.walk(partition(self.net, workers, cuts=way(self.net, workers)).locals[0])
        return machine

    @cached_property
    def alone(self) -> Prediction:
        """What an iteration costs on one worker."""
        return self.predict(by_rows(self.net, 1), 1)

    def efficiency(self, prediction: Prediction, workers: int) -> float:
        """Return how much of ``workers`` times one worker's speed they reach: t1 / (n·tn)."""
        return self.alone.seconds / (workers * prediction.seconds)
