"""Predicts the iteration time of a net cut over a real or imagined cluster, and finds the best cuts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from dsinga.addons.planner.group_programs import NetParts, approximate_program, exact_program
from dsinga.addons.planner.link import Links
from dsinga.addons.planner.machine import MachineModel
from dsinga.addons.planner.processes import ProcessMap
from dsinga.addons.planner.search import (
    Search,
    by_features,
    by_layer,
    by_rows,
    by_space,
    describe_cuts,
    few_rows,
    has_space,
    hybrid,
)
from dsinga.addons.planner.simulate import Prediction, simulate
from dsinga.cutting.partitioned import WHOLE_LAYER, LayerCut
from dsinga.cutting.partitioning import partition
from dsinga.cutting.strategy import choose_cuts
from dsinga.job import JobError, NetConf
from dsinga.net import NeuralNet

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
        """Predict an iteration's cost, from the partitioned net for up to EXACT_WORKERS workers."""
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
        """Return the cached search for the cheapest cuts."""
        return self._searches(frozenset(fixed))

    @cached_property
    def _searches(self) -> Callable[[frozenset[str]], Search]:
        return cache(lambda fixed: Search(self.net, self.price, fixed))

    def price(self, cuts: Mapping[str, LayerCut], workers: int) -> float:
        """Estimate an iteration's seconds quickly, for the search."""
        machine = self._machines_with_timed_nets(workers)
        group = approximate_program(self._parts(workers), cuts, self.processes(workers), machine)
        return simulate(group, self.links).seconds

    @cached_property
    def _machines_with_timed_nets(self) -> Callable[[int], MachineModel]:
        return cache(self._machine_with_timed_nets)

    def _machine_with_timed_nets(self, workers: int) -> MachineModel:
        """Time nets cut by rows and by features, so that layers' times are measured within a net."""
        machine = self._machines(workers)
        if workers <= EXACT_WORKERS:
            for strategy in (by_rows, by_features):
                machine.time_net(partition(self.net, workers, cuts=strategy(self.net, workers)), 0)
        return machine

    @cached_property
    def single_worker(self) -> Prediction:
        """The predicted cost on one worker."""
        return self.predict(by_rows(self.net, 1), 1)

    def efficiency(self, prediction: Prediction, workers: int) -> float:
        """Return the parallel efficiency t1 / (n·tn)."""
        return self.single_worker.seconds / (workers * prediction.seconds)


Cuts = Mapping[str, LayerCut]


class PricedCuts(NamedTuple):
    """Cuts over ``workers`` workers with their predicted cost."""

    cuts: Cuts
    workers: int
    prediction: Prediction

    def text(self, net: NeuralNet) -> str:
        """Describe the cuts in words."""
        return describe_cuts(net, self.cuts) if self.workers > 1 else "one worker computes all layers"


STRATEGIES = {"data": by_rows, "hybrid": hybrid, "feature": by_features, "layers": by_layer, "space": by_space}


def named_strategies(
    net: NeuralNet, workers: int, fixed: Collection[str] = (), names: Collection[str] = tuple(STRATEGIES)
) -> dict[str, Cuts]:
    """Return the cuts of the paper's strategies by name, and "space" if :func:`has_space`.

    Strategies that cut rows need at least as many rows as workers. Layers in ``fixed`` stay as the job says.
    """
    left_out = {"data", "hybrid"} if few_rows(net, workers) else set()
    left_out |= set() if has_space(net, workers) else {"space"}
    names = [name for name in names if name not in left_out]
    return {name: _keep(net, workers, STRATEGIES[name](net, workers), fixed) for name in names}


def predict(model: CostModel, cuts: Cuts, workers: int) -> PricedCuts:
    """Predict the iteration time of these cuts over ``workers`` workers."""
    return PricedCuts(cuts, workers, model.predict(cuts, workers))


def scaled(model: CostModel, workers: int) -> dict[str, PricedCuts]:
    """Predict partitionings for any number of workers: "data", "hybrid", "space" and "auto".

    "auto" is the cheapest of them, one worker, and the search's result.
    """
    single = predict(model, by_rows(model.net, 1), 1)
    choices = {
        name: predict(model, cuts, workers)
        for name, cuts in named_strategies(model.net, workers, names=("data", "hybrid", "space")).items()
    }
    return {**choices, "auto": _cheapest(model, workers, [single, *choices.values()])}


def compared(
    model: CostModel, workers: int, fixed: Collection[str] = (), one_worker: bool = True
) -> dict[str, PricedCuts]:
    """Predict the partitionings that a plan compares for several workers, by name.

    "auto" is the cheapest of them and of the search's result; ``one_worker`` allows a single worker.
    """
    single = predict(model, by_rows(model.net, 1), 1)
    choices = {
        name: predict(model, cuts, workers) for name, cuts in named_strategies(model.net, workers, fixed).items()
    }
    with contextlib.suppress(JobError):  # layers that cannot be cut over so many workers
        choices["as the job says"] = predict(model, choose_cuts(model.net, workers), workers)
    candidates = [*([single] if one_worker else []), *choices.values()]
    return {"one worker": single, **choices, "auto": _cheapest(model, workers, candidates, fixed, one_worker)}


def _cheapest(
    model: CostModel,
    workers: int,
    candidates: Sequence[PricedCuts],
    fixed: Collection[str] = (),
    one_worker: bool = True,
) -> PricedCuts:
    cheapest = model.search(fixed).cuts(workers)
    more = [] if one_worker and _is_on_one_worker(cheapest) else [predict(model, cheapest, workers)]
    return min([*candidates, *more], key=lambda choice: choice.prediction.seconds)


def needs_several_workers(conf: NetConf) -> bool:
    """Whether a layer is placed on a certain worker."""
    return any(layer.location for layer in conf.layer)


def _is_on_one_worker(cuts: Cuts) -> bool:
    return {cut[:2] for cut in cuts.values()} == {(WHOLE_LAYER, 0)}


def _keep(net: NeuralNet, workers: int, cuts: Cuts, fixed: Collection[str]) -> Cuts:
    if not fixed:
        return cuts
    return choose_cuts(net, workers, {name: cut for name, cut in cuts.items() if name not in fixed})
