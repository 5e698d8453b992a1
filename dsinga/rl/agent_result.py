"""AgentResult: the result of training an agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsinga.monitor import History
from dsinga.rl.agent import Agent


@dataclass
class AgentResult:
    """The result of training an agent.

    Attributes:
        agent: the agent.
        history: the rows of metrics; those of the phase "test" are evaluations by the best actions.
        step: how many steps the environments have done.
        workspace: the folder of metrics and checkpoints, None without one.
    """

    agent: Agent
    history: History
    step: int
    workspace: Path | None

    def __repr__(self) -> str:
        name = type(self.agent.algorithm).__name__
        last = {row["phase"]: row for row in self.history if "episode_return" in row}
        means = [f"{phase}, mean return {row['episode_return']:.4g}" for phase, row in last.items()]
        return f"<Result of {name} after {self.step} steps: {'; '.join(means) or 'no episode has ended'}>"

    def _repr_html_(self) -> str:
        return f"<p>{repr(self)[1:-1]}</p>{self.history._repr_html_()}"
