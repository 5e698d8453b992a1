"""Settings of reinforcement learning: ``reinforcement { }`` of a job, and those of each algorithm.

The defaults are those of the classes in :mod:`dsinga.rl.algorithms`, which say what the settings mean.
"""

from __future__ import annotations

from enum import Enum

from dsinga.job.message import Message


class LearningAlgorithm(Enum):
    """The algorithms of reinforcement learning."""

    kPPO = 0
    kA2C = 1


class PPOConf(Message):
    """Settings of kPPO (:class:`dsinga.rl.PPO`)."""

    clip: float = 0.2
    epochs: int = 4
    minibatches: int = 4
    decay: float = 0.95
    value_scale: float = 0.5
    entropy_scale: float = 0.0
    normalize_advantages: bool = True
    max_gradient_norm: float = 0.5


class A2CConf(Message):
    """Settings of kA2C (:class:`dsinga.rl.A2C`)."""

    decay: float = 1.0
    value_scale: float = 0.5
    entropy_scale: float = 0.0
    normalize_advantages: bool = False
    max_gradient_norm: float = 0.5


class ReinforcementConf(Message):
    """How an agent learns from an environment, in place of records.

    ``environment`` is its name, as for :func:`dsinga.rl.make_environments`, and ``num_environments`` how many are
    stepped together. ``rollout_steps`` are the steps of each in a rollout. The job's ``train_steps``, ``disp_freq``,
    ``test_freq`` and ``checkpoint_freq`` count steps of all environments together; a test is an evaluation by the best
    actions in ``evaluation_episodes`` episodes. ``discount`` is the factor of the next step's reward.
    """

    environment: str
    num_environments: int = 8
    algorithm: LearningAlgorithm
    rollout_steps: int = 128
    discount: float = 0.99
    evaluation_episodes: int = 10
    ppo_conf: PPOConf | None = None
    a2c_conf: A2CConf | None = None
