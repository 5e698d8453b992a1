"""Reinforcement learning, after PARL: models, algorithms and agents, which dsinga's training loop trains."""

from typing import TYPE_CHECKING, Any

from dsinga.base.components import lazy_names
from dsinga.base.registry import entries, is_user_code

if TYPE_CHECKING:
    from dsinga.rl.agent import Agent
    from dsinga.rl.agent_training import AgentResult, train
    from dsinga.rl.algorithm import Algorithm
    from dsinga.rl.algorithms.ddpg import DDPG, TD3
    from dsinga.rl.algorithms.dqn import DQN
    from dsinga.rl.algorithms.es import ES
    from dsinga.rl.algorithms.impala import IMPALA
    from dsinga.rl.algorithms.ppo import A2C, PPO
    from dsinga.rl.algorithms.reinforce import REINFORCE
    from dsinga.rl.collecting import Collector
    from dsinga.rl.environments.registered import make_environment, make_environments
    from dsinga.rl.environments.spaces import BoxSpace, DiscreteSpace, Space, Spaces, box
    from dsinga.rl.environments.vector_environment import EnvironmentStep, VectorEnvironment
    from dsinga.rl.evaluation import EvaluatedEpisodes, evaluate, record_episode
    from dsinga.rl.experience import Episode, EpisodeStatistics, Rollout, Sampled, Transitions
    from dsinga.rl.from_job import ReplaySettings
    from dsinga.rl.learning import OffPolicyLearning
    from dsinga.rl.model import Model
    from dsinga.rl.replay_memory import PrioritizedReplay, ReplayMemory

__all__ = [
    "A2C", "DDPG", "DQN", "ES", "IMPALA", "PPO", "REINFORCE", "TD3", "Agent", "AgentResult", "Algorithm", "BoxSpace",
    "Collector", "DiscreteSpace", "EnvironmentStep", "Episode", "EpisodeStatistics", "EvaluatedEpisodes", "Model",
    "OffPolicyLearning", "PrioritizedReplay", "ReplayMemory", "ReplaySettings", "Rollout", "Sampled", "Space", "Spaces",
    "Transitions", "VectorEnvironment", "box", "evaluate", "make_environment", "make_environments", "record_episode",
    "train",
]  # fmt: skip


def _algorithm(name: str) -> Any:
    """Return the class of an algorithm that is registered."""
    algorithms = {cls.__name__: cls for cls in entries("learning_algorithm").values() if not is_user_code(cls)}
    if name in algorithms:
        return algorithms[name]
    raise AttributeError(f"module 'dsinga.rl' has no attribute {name!r}")


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _algorithm)
