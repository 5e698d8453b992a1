"""EvolutionLoop: lets each candidate of an evolution strategy act for an episode, and learns from the returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.rl.algorithms.es import ES
from dsinga.rl.evaluation import check_length
from dsinga.rl.on_policy import CollectingLoop
from dsinga.worker.param_slices import Arrays


class EvolutionLoop(CollectingLoop):
    """Trains an agent of the algorithm ES; each candidate acts in all environments for an episode."""

    def advance(self, steps: int) -> Mapping[str, float]:
        """Do one generation, however many steps it takes; return the metrics."""
        algorithm = self.agent.algorithm
        assert isinstance(algorithm, ES)
        return self.agent.learn([self._mean_return(algorithm, params) for params in algorithm.candidates()])

    def _mean_return(self, algorithm: ES, params: Arrays) -> float:
        """Return the mean return of the first episode in each environment."""
        environments, statistics = self.collector.environments, self.collector.statistics
        statistics.begin()
        observations = environments.reset()
        returns: dict[int, float] = {}
        while len(returns) < environments.count:
            check_length(environments, environments.steps)
            step = environments.step(algorithm.actions(observations, params))
            for episode in statistics.add(step):
                returns.setdefault(episode.environment, episode.total_reward)
            observations = step.observations
        return float(np.mean([returns[number] for number in range(environments.count)]))

    def state(self) -> dict[str, Any]:
        """Return what training goes on from, bit for bit: nested dicts of arrays and plain values."""
        return {"agent": self.agent.state(), "collector": self.collector.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        self.agent.set_state(state["agent"])
        self.collector.restore(state["collector"])
