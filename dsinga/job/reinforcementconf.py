"""Settings of reinforcement learning: ``reinforcement { }`` of a job.

Those of each algorithm are declared by its class in :mod:`dsinga.rl.algorithms`.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from dsinga.job.component import Component
from dsinga.job.limits import Count, Natural, Unit
from dsinga.job.message import Message
from dsinga.job.type_names import TypeName


class LearningAlgorithm(TypeName, kind="learning_algorithm", user="kUserAlgorithm", number=107):
    """The algorithms of reinforcement learning."""


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


class ReinforcementConf(Component):
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
    kind: ClassVar = "learning_algorithm"
    type_field: ClassVar = "algorithm"
    user_field: ClassVar = "user_algorithm"

    environment: str
    num_environments: Count = 8
    num_actors: Natural = 0
    central_inference: bool = False
    max_staleness: Natural = 8
    algorithm: LearningAlgorithm = LearningAlgorithm.kUserAlgorithm
    user_algorithm: str | None = None
    rollout_steps: Count = 128
    discount: Unit = 0.99
    evaluation_episodes: Natural = 10
    stop_return: float | None = None
    heads: list[str] = field(default_factory=list)
    replay_conf: ReplayConf | None = None
