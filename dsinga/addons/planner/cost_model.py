"""The cost model: the time of an iteration for a net, its cuts, and a cluster that need not exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from dsinga.addons.planner.group_programs import NetParts, approximate_program, exact_program
from dsinga.addons.planner.link import Links
from dsinga.addons.planner.machine import MachineModel
from dsinga.addons.planner.processes import ProcessMap
from dsinga.addons.planner.search import Search
from dsinga.addons.planner.simulate import Prediction, simulate
from dsinga.addons.planner.strategies import by_features, by_rows
from dsinga.net import NeuralNet, partition
from dsinga.net.cut import LayerCut

EXACT_WORKERS = 8  # for more workers the net is not partitioned but approximated: it would be too large


@dataclass(frozen=True)
class CostModel:
    """Predicts the iteration time of partitionings of ``net``.

    ``machine`` and ``processes`` are functions of the number of workers.
    """

    net: NeuralNet
    machine: Callable[[int], MachineModel]
    links: Links
    processes: Callable[[int], ProcessMap]

    @cached_property
    def _parts(self) -> Callable[[int], NetParts]:
        return cache(lambda workers: NetParts(self.net, workers))

    @cached_property
    def _machines(self) -> Callable[[int], MachineModel]:
        return cache(self.machine)

    def predict(self, cuts: Mapping[str, LayerCut], workers: int, overlap: bool = True) -> Prediction:
        """Return the cost of an iteration, from the partitioned net where there are up to EXACT_WORKERS workers."""
        key = (frozenset(cuts.items()), workers, overlap)
        if key not in self._predictions:
            self._predictions[key] = self._predict(cuts, workers, overlap)
        return self._predictions[key]

    @cached_property
    def _predictions(self) -> dict[Hashable, Prediction]:
        return {}

    def _predict(self, cuts: Mapping[str, LayerCut], workers: int, overlap: bool) -> Prediction:
        processes, machine = self.processes(workers), self._machines(workers)
        if workers <= EXACT_WORKERS:
            group = exact_program(partition(self.net, workers, cuts=cuts), processes, machine)
        else:
            group = approximate_program(self._parts(workers), cuts, processes, machine)
        return simulate(group, self.links, overlap)

    def search(self, fixed: Collection[str] = ()) -> Search:
        """Return the search for the cheapest cuts by :meth:`price`; it keeps its prices for further calls."""
        return self._searches(frozenset(fixed))

    @cached_property
    def _searches(self) -> Callable[[frozenset[str]], Search]:
        return cache(lambda fixed: Search(self.net, self.price, fixed))

    def price(self, cuts: Mapping[str, LayerCut], workers: int) -> float:
        """Return the seconds of an iteration, approximately and quickly: for a search."""
        machine = self._machines_with_timed_nets(workers)
        group = approximate_program(self._parts(workers), cuts, self.processes(workers), machine)
        return simulate(group, self.links).seconds

    @cached_property
    def _machines_with_timed_nets(self) -> Callable[[int], MachineModel]:
        return cache(self._machine_with_timed_nets)

    def _machine_with_timed_nets(self, workers: int) -> MachineModel:
        """Return the machine after timing the nets cut all by rows and all by features.

        The layers of these nets then have the times that they take within a net.
        """
        machine = self._machines(workers)
        if workers <= EXACT_WORKERS:
            for strategy in (by_rows, by_features):
                machine.time_net(partition(self.net, workers, cuts=strategy(self.net, workers)), 0)
        return machine

    @cached_property
    def single_worker(self) -> Prediction:
        """The cost of an iteration on one worker."""
        return self.predict(by_rows(self.net, 1), 1)

    def efficiency(self, prediction: Prediction, workers: int) -> float:
        """Return the share of ``workers`` times one worker's speed that is reached: t1 / (n·tn)."""
        return self.single_worker.seconds / (workers * prediction.seconds)
