"""Evaluates an agent: returns and lengths of episodes in which it takes its best actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.error_frames import public
from dsinga.base.errors import RunError, UserError
from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.environments.registered import Environment, make_environments
from dsinga.rl.environments.vector_environment import VectorEnvironment
from dsinga.rl.episodes import EpisodeStatistics

# The number of the first environment of an evaluation: none of a training run with the same seed has the same episodes.
FIRST_ENVIRONMENT = 1 << 32
MOST_ENVIRONMENTS = 32
LONGEST_EPISODE = 1_000_000  # steps


class Policy(Protocol):
    """What chooses actions, such as an agent or an algorithm."""

    @property
    def predict(self) -> Callable[..., Any]:
        """A method that returns the best actions for observations (N, ...); with hidden states, it takes them, too."""


class BestActions:
    """Chooses the best actions of an agent for ``count`` environments, with its hidden states, if it has any."""

    def __init__(self, agent: Policy, count: int):
        self._predict = agent.predict
        self._hidden = agent.hidden_states(count) if isinstance(agent, Agent | Algorithm) else None

    def __call__(self, observations: np.ndarray) -> Any:
        """Return the best actions for observations (N, ...)."""
        return self._predict(observations) if self._hidden is None else self._predict(observations, self._hidden)

    def end(self, ended: np.ndarray) -> None:
        """Reset the hidden states of the environments whose episodes have ended."""
        if self._hidden is not None:
            self._hidden.reset(ended)


class EvaluatedEpisodes(NamedTuple):
    """Sums of rewards (n,) float64 and lengths (n,) int64 of n episodes."""

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean_return(self) -> float:
        """The mean over the episodes."""
        return float(self.returns.mean())

    def summary(self) -> dict[str, float]:
        """Return the means of ``episode_return`` and ``episode_length``."""
        return {"episode_return": self.mean_return, "episode_length": float(self.lengths.mean())}

    def __str__(self) -> str:
        return (
            f"mean return {self.mean_return:.4g} (standard deviation {self.returns.std():.3g}) over "
            f"{len(self.returns)} episodes of {self.lengths.mean():.4g} steps on average"
        )


@public
def evaluate(
    agent: Policy, environment: Environment, episodes: int = 100, *, seed: int = 0, **settings: Any
) -> EvaluatedEpisodes:
    """Return what an agent reaches by its best actions.

    Several environments are stepped together. How many episodes each one contributes is fixed beforehand: the first
    ``episodes`` to end would be the short ones.

    Args:
        agent: an agent or an algorithm; its method ``predict`` is called.
        environment: as for :func:`dsinga.rl.make_environments`.
        episodes: how many episodes.
        seed: determines the random numbers of the environments, which are others than in training by the same seed.
        settings: further arguments of the environment.

    Raises UserError as :func:`dsinga.rl.make_environments`; RunError where an environment fails, or an episode does not
    end within :data:`LONGEST_EPISODE` steps.
    """
    check_whole("the number of episodes", episodes, 1)
    if not hasattr(agent, "predict"):
        remedy = "give its agent" if hasattr(agent, "agent") else "its method predict chooses actions"
        raise UserError(f"an evaluation takes an agent or an algorithm, not {agent!r}; {remedy}")
    count = min(episodes, MOST_ENVIRONMENTS)
    environments = make_environments(environment, count, seed=seed, first=FIRST_ENVIRONMENT, **settings)
    if isinstance(agent, Agent):
        agent.check_environments(environments)
    statistics = EpisodeStatistics(count)
    missing = [episodes // count + (i < episodes % count) for i in range(count)]
    ended: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    choose = BestActions(agent, count)
    steps = 0  # since an episode that counts has ended
    try:
        observations = environments.reset()
        while any(missing):
            step = environments.step(choose(observations))
            choose.end(step.ended)
            observations = step.observations
            steps += 1
            for episode in statistics.add(step):
                if missing[episode.environment]:
                    missing[episode.environment] -= 1
                    ended[episode.environment].append((episode.total_reward, episode.length))
                    steps = 0
            check_length(environments, steps)
    finally:
        environments.close()
    returns, lengths = zip(*(pair for pairs in ended for pair in pairs), strict=True)
    return EvaluatedEpisodes(np.array(returns), np.array(lengths))


def check_length(environments: VectorEnvironment, steps: int) -> None:
    """Raise RunError where an episode has lasted for ``steps`` steps, LONGEST_EPISODE or more."""
    if steps >= LONGEST_EPISODE:
        raise RunError(
            f"an episode of {environments.name!r} did not end within {LONGEST_EPISODE} steps; give the environment a "
            "time limit, such as gymnasium.wrappers.TimeLimit"
        )
