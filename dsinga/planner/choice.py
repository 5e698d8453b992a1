"""The choice of a partitioning: the cheapest of all that a plan compares, one worker included."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

from dsinga.job import JobError, NetConf
from dsinga.net import NeuralNet, choose_cuts
from dsinga.net.cut import WHOLE_LAYER, LayerCut
from dsinga.planner.cost_model import CostModel
from dsinga.planner.search import Search
from dsinga.planner.simulate import Prediction
from dsinga.planner.strategies import by_features, by_layer, by_rows, describe_cuts, hybrid

Cuts = Mapping[str, LayerCut]


class PricedCuts(NamedTuple):
    """Cuts of a net over ``workers`` workers, and what an iteration costs."""

    cuts: Cuts
    workers: int
    prediction: Prediction

    def words(self, net: NeuralNet) -> str:
        """Return the cuts as text."""
        return describe_cuts(net, self.cuts) if self.workers > 1 else "one worker computes all layers"


def named_strategies(net: NeuralNet, workers: int, fixed: Collection[str] = ()) -> dict[str, Cuts]:
    """Return the paper's strategies by name. Layers in ``fixed`` are cut as the job says."""
    strategies = {"data": by_rows, "hybrid": hybrid, "feature": by_features, "layers": by_layer}
    return {name: _keep(net, workers, cut(net, workers), fixed) for name, cut in strategies.items()}


def predict(model: CostModel, cuts: Cuts, workers: int) -> PricedCuts:
    """Return the cuts with what an iteration costs."""
    return PricedCuts(cuts, workers, model.predict(cuts, workers))


def compared(
    model: CostModel, workers: int, fixed: Collection[str] = (), one_worker: bool = True
) -> dict[str, PricedCuts]:
    """Return the partitionings that a plan for several workers compares, by name.

    "auto" is the cheapest of these and of the one that the search finds. ``one_worker`` says whether it may be one
    worker. Raises JobError where layers in ``fixed`` cannot be cut as the job says.
    """
    single = predict(model, by_rows(model.net, 1), 1)
    choices = {
        name: predict(model, cuts, workers) for name, cuts in named_strategies(model.net, workers, fixed).items()
    }
    with contextlib.suppress(JobError):  # layers that cannot be cut over so many workers
        choices["as the job says"] = predict(model, choose_cuts(model.net, workers), workers)
    candidates = [*([single] if one_worker else []), *choices.values()]
    found = Search(model.net, model.price, fixed).cuts(workers)
    if not (one_worker and _is_on_one_worker(found)):
        candidates.append(predict(model, found, workers))
    cheapest = min(candidates, key=lambda choice: choice.prediction.seconds)
    return {"one worker": single, **choices, "auto": cheapest}


def needs_several_workers(conf: NetConf) -> bool:
    """Whether a layer has a location that one worker does not have."""
    return any(layer.location for layer in conf.layer)


def _is_on_one_worker(cuts: Cuts) -> bool:
    """Whether one worker computes everything, while the others only wait for it."""
    return {cut[:2] for cut in cuts.values()} == {(WHOLE_LAYER, 0)}


def _keep(net: NeuralNet, workers: int, cuts: Cuts, fixed: Collection[str]) -> Cuts:
    """Return the cuts with the job's own of the layers in ``fixed``."""
    if not fixed:
        return cuts
    return choose_cuts(net, workers, {name: cut for name, cut in cuts.items() if name not in fixed})
