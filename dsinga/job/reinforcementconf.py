"""Settings of reinforcement learning: ``reinforcement { }`` of a job, and those of each algorithm.

The defaults are those of the classes in :mod:`dsinga.rl.algorithms`, which say what the settings mean.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Annotated, ClassVar

from dsinga.job.limits import Count, Natural, NonNegative, Positive, Range, Unit
from dsinga.job.message import Message
from dsinga.job.updaterconf import UpdaterConf


class LearningAlgorithm(Enum):
    """The algorithms of reinforcement learning."""

    kPPO = 0
    kA2C = 1
    kREINFORCE = 2
    kIMPALA = 3
    kES = 4
    kDQN = 5
    kDDPG = 6
    kTD3 = 7


class PPOConf(Message):
    """Settings of kPPO (:class:`dsinga.rl.PPO`)."""

    clip: NonNegative = 0.2
    epochs: Count = 4
    minibatches: Count = 4
    decay: Unit = 0.95
    value_scale: NonNegative = 0.5
    entropy_scale: NonNegative = 0.0
    normalize_advantages: bool = True
    max_gradient_norm: NonNegative = 0.5


class A2CConf(Message):
    """Settings of kA2C (:class:`dsinga.rl.A2C`)."""

    decay: Unit = 1.0
    value_scale: NonNegative = 0.5
    entropy_scale: NonNegative = 0.0
    normalize_advantages: bool = False
    max_gradient_norm: NonNegative = 0.5


class REINFORCEConf(Message):
    """Settings of kREINFORCE (:class:`dsinga.rl.REINFORCE`)."""

    value_scale: NonNegative = 0.5
    entropy_scale: NonNegative = 0.0
    normalize_advantages: bool = True
    max_gradient_norm: NonNegative = 0.5


class IMPALAConf(Message):
    """Settings of kIMPALA (:class:`dsinga.rl.IMPALA`)."""

    rho_clip: NonNegative = 1.0
    c_clip: NonNegative = 1.0
    value_scale: NonNegative = 0.5
    entropy_scale: NonNegative = 0.01
    max_gradient_norm: NonNegative = 40.0


class ESConf(Message):
    """Settings of kES (:class:`dsinga.rl.ES`)."""

    population: Annotated[int, Range(2)] = 32
    deviation: Positive = 0.05


class DQNConf(Message):
    """Settings of kDQN (:class:`dsinga.rl.DQN`)."""

    double: bool = False
    delta: NonNegative = 1.0
    target_every: Count = 250
    target_share: Unit = 1.0
    first_epsilon: Unit = 1.0
    last_epsilon: Unit = 0.05
    epsilon_steps: Count = 10_000
    actor_spread: NonNegative = 7.0


class DDPGConf(Message):
    """Settings of kDDPG (:class:`dsinga.rl.DDPG`). The job's ``updater`` is that of the actor."""

    noise: NonNegative = 0.1
    noise_correlation: Unit = 0.0
    random_steps: Natural = 1000
    target_share: Unit = 0.005
    critic_updater: UpdaterConf | None = None


class TD3Conf(Message):
    """Settings of kTD3 (:class:`dsinga.rl.TD3`). The job's ``updater`` is that of the actor."""

    noise: NonNegative = 0.1
    noise_correlation: Unit = 0.0
    random_steps: Natural = 1000
    target_share: Unit = 0.005
    target_noise: NonNegative = 0.2
    target_noise_limit: NonNegative = 0.5
    actor_every: Count = 2
    critic_updater: UpdaterConf | None = None


class ReplayConf(Message):
    """The replay memory of kDQN, kDDPG and kTD3, and when they learn from it.

    ``capacity`` is the number of transitions that it keeps, ``batch_size`` that of an update. There is an update for
    every ``learn_every`` steps of environments, after ``learn_after`` steps. A transition has ``n_steps`` steps. With
    ``prioritized`` transitions of a large error are drawn more often.
    """

    capacity: Count = 100_000
    batch_size: Count = 32
    learn_every: Count = 1
    learn_after: Natural = 1000
    n_steps: Count = 1
    prioritized: bool = False


class ReinforcementConf(Message):
    """How an agent learns from an environment, in place of records.

    ``environment`` is its name, as for :func:`dsinga.rl.make_environments`, and ``num_environments`` how many are
    stepped together; with ``num_actors`` each of so many actors on a Dask cluster has as many. With
    ``central_inference`` actors send observations, and the learner chooses all actions. A rollout of an actor is at
    most ``max_staleness`` updates old when kIMPALA learns from it, or when a replay memory gets it, where all updates
    between two rollouts count as one. Where the job's cluster has several workers, each learns, and has so many
    environments or actors (kA2C, kPPO; kIMPALA). ``rollout_steps`` are the steps of each environment in a rollout, or
    those between rows of metrics. The job's ``train_steps``, ``disp_freq``, ``test_freq`` and ``checkpoint_freq`` count
    steps of all environments together; a test is an evaluation by the best actions in ``evaluation_episodes`` episodes,
    and the run ends when its mean return is ``stop_return``. ``discount`` is the factor of the next step's reward.
    ``heads`` are the layers to which the algorithm gives a meaning, such as a policy and a value; by default those that
    are no sources of others.
    """

    aliases: ClassVar = {"predicts_here": "central_inference"}

    environment: str
    num_environments: Count = 8
    num_actors: Natural = 0
    central_inference: bool = False
    max_staleness: Natural = 8
    algorithm: LearningAlgorithm | None = None
    rollout_steps: Count = 128
    discount: Unit = 0.99
    evaluation_episodes: Natural = 10
    stop_return: float | None = None
    heads: list[str] = field(default_factory=list)
    ppo_conf: PPOConf | None = None
    a2c_conf: A2CConf | None = None
    reinforce_conf: REINFORCEConf | None = None
    impala_conf: IMPALAConf | None = None
    es_conf: ESConf | None = None
    dqn_conf: DQNConf | None = None
    ddpg_conf: DDPGConf | None = None
    td3_conf: TD3Conf | None = None
    replay_conf: ReplayConf | None = None
