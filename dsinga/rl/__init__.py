"""Reinforcement learning: models, algorithms and agents, after PARL, on the engine of the other packages."""

from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.algorithms.a2c import A2C
from dsinga.rl.algorithms.ddpg import DDPG
from dsinga.rl.algorithms.dqn import DQN
from dsinga.rl.algorithms.es import ES
from dsinga.rl.algorithms.impala import IMPALA
from dsinga.rl.algorithms.ppo import PPO
from dsinga.rl.algorithms.reinforce import REINFORCE
from dsinga.rl.algorithms.td3 import TD3
from dsinga.rl.collecting import Collector
from dsinga.rl.environments import make_environment, make_environments
from dsinga.rl.episodes import Episode, EpisodeStatistics
from dsinga.rl.evaluation import EvaluatedEpisodes, evaluate
from dsinga.rl.experience import Rollout, Sampled, Transitions
from dsinga.rl.model import Model
from dsinga.rl.off_policy import OffPolicyLoop
from dsinga.rl.prioritized_replay import PrioritizedReplay
from dsinga.rl.remote.group_training import train_in_groups
from dsinga.rl.rendering import record_episode
from dsinga.rl.replay import ReplayMemory
from dsinga.rl.run_settings import ReplaySettings
from dsinga.rl.spaces import BoxSpace, DiscreteSpace, Space, Spaces, box
from dsinga.rl.training import AgentResult, train
from dsinga.rl.vector_environment import EnvironmentStep, VectorEnvironment

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "ES",
    "IMPALA",
    "PPO",
    "REINFORCE",
    "TD3",
    "Agent",
    "AgentResult",
    "Algorithm",
    "BoxSpace",
    "Collector",
    "DiscreteSpace",
    "EnvironmentStep",
    "Episode",
    "EpisodeStatistics",
    "EvaluatedEpisodes",
    "Model",
    "OffPolicyLoop",
    "PrioritizedReplay",
    "ReplayMemory",
    "ReplaySettings",
    "Rollout",
    "Sampled",
    "Space",
    "Spaces",
    "Transitions",
    "VectorEnvironment",
    "box",
    "evaluate",
    "make_environment",
    "make_environments",
    "record_episode",
    "train",
    "train_in_groups",
]
