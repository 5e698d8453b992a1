"""Reinforcement learning: models, algorithms and agents, after PARL, on the engine of the other packages."""

from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.experience import Rollout, Sampled, Transitions
from dsinga.rl.model import Model
from dsinga.rl.spaces import BoxSpace, DiscreteSpace, Space, Spaces, box

__all__ = [
    "Agent",
    "Algorithm",
    "BoxSpace",
    "DiscreteSpace",
    "Model",
    "Rollout",
    "Sampled",
    "Space",
    "Spaces",
    "Transitions",
    "box",
]
