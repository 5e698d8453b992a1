"""Settings of reinforcement learning: ``reinforcement { }`` of a job.

Those of each algorithm are declared by its class in :mod:`dsinga.rl.algorithms`.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from dsinga.job.component import Component, Settings, setting
from dsinga.job.limits import Count, Natural, Unit
from dsinga.job.type_names import TypeName


class LearningAlgorithm(TypeName, kind="learning_algorithm", user="kUserAlgorithm", number=107):
    """The algorithms of reinforcement learning."""


class ReplayConf(Settings):
    """The replay memory of algorithms that learn from transitions, as kDQN, and when they do. Not of a single class."""

    capacity: Count = setting(100_000, "how many transitions are kept")
    batch_size: Count = setting(32, "transitions of an update")
    learn_every: Count = setting(1, "steps of environments for each update")
    learn_after: Natural = setting(1000, "steps of environments before the first update")
    n_steps: Count = setting(1, "steps of a transition")
    prioritized: bool = setting(False, "whether transitions of a large error are drawn more often")


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
