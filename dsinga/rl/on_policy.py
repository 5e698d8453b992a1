"""OnPolicyLoop: steps environments and learns from each rollout; and the interface of all loops that learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dsinga.rl.agent import Agent
from dsinga.rl.collecting import Collector
from dsinga.rl.episodes import EpisodeStatistics


class LearningLoop(Protocol):
    """How an agent learns from environments.

    Attributes:
        agent: the agent.
    """

    agent: Agent

    @property
    def statistics(self) -> EpisodeStatistics:
        """The steps and the episodes so far."""

    def advance(self, steps: int) -> Mapping[str, float]:
        """Take ``steps`` steps of each environment and learn; return metrics, {} where nothing was learnt."""

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from, bit for bit: nested dicts of arrays and plain values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net, environment or memory."""

    def close(self) -> None:
        """Free what the environments hold."""


class CollectingLoop:
    """Base of loops that step environments in this process.

    Args:
        agent: the agent.
        collector: the environments, and what is known of their episodes.
    """

    def __init__(self, agent: Agent, collector: Collector):
        agent.check_environments(collector.environments)
        self.agent, self.collector = agent, collector

    @property
    def statistics(self) -> EpisodeStatistics:
        """The steps and the episodes so far."""
        return self.collector.statistics

    def close(self) -> None:
        """Free what the environments hold."""
        self.collector.environments.close()


class OnPolicyLoop(CollectingLoop):
    """Trains an agent whose algorithm learns from each rollout once, with the params that chose its actions."""

    def advance(self, steps: int) -> Mapping[str, float]:
        """Collect a rollout of ``steps`` steps of each environment, and learn from it; return the metrics."""
        values = getattr(self.agent.algorithm, "values", None)
        return self.agent.learn(self.collector.rollout(self.agent.sample, steps, values))

    def state(self) -> dict[str, Any]:
        """Return what training goes on from, bit for bit: nested dicts of arrays and plain values."""
        return {"agent": self.agent.state(), "collector": self.collector.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError where it is that of another net or environment."""
        self.agent.set_state(state["agent"])
        self.collector.restore(state["collector"])
