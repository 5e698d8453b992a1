"""The settings of an agent in a job, ``reinforcement { }``, and their checks."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from dsinga.base.registry import register
from dsinga.job.checks import check_extension, check_numbers, check_settings, check_type, iterate_messages
from dsinga.job.component import Component, Settings, setting
from dsinga.job.limits import Count, Natural, Unit
from dsinga.job.schema import ExtensionConf, Job
from dsinga.job.type_names import TypeName
from dsinga.job.updaterconf import UpdaterConf

# Job fields that have no effect on an agent, and what to use instead.
INSTEAD_OF_FIELDS = {
    "epochs": "it learns from an environment, not from records: set train_steps",
    "validate_freq": "an agent is evaluated in phase test: set test_freq",
}
NO_RECORDS = (
    "the job learns from an environment, not from records: use dsinga.train(job) or dsinga.rl.train(job), or "
    "`dsinga train`, `dsinga test` and `dsinga show` in a shell"
)


class LearningAlgorithm(TypeName, kind="learning_algorithm", user="kUserAlgorithm", number=107):
    """The built-in reinforcement learning algorithms, by their name in a job."""


class ReplayConf(Settings):
    """Settings of a replay memory, and when an algorithm such as kDQN learns from it."""

    capacity: Count = setting(100_000, "how many transitions are kept")
    batch_size: Count = setting(32, "transitions of an update")
    learn_every: Count = setting(1, "steps of environments for each update")
    learn_after: Natural = setting(1000, "steps of environments before the first update")
    n_steps: Count = setting(1, "steps of a transition")
    prioritized: bool = setting(False, "whether transitions of a large error are drawn more often")


@register("message", "Job.reinforcement")
class ReinforcementConf(Component):
    """Settings of an agent that learns from an environment instead of records.

    ``train_steps``, ``disp_freq``, ``test_freq`` and ``checkpoint_freq`` of the job count the steps of all environments
    together. A test plays ``evaluation_episodes`` episodes with the best actions. If the cluster has several workers,
    each of them learns and has its own environments (kA2C, kPPO) or actors (kIMPALA).

    Args:
        environment: the name of the environment, as in :func:`dsinga.rl.make_environments`.
        num_environments: the number of environments that are stepped together. Each actor has this number, too.
        num_actors: the number of actors on a Dask cluster; 0 for none.
        central_inference: whether actors send observations and the learner chooses all actions.
        max_staleness: how many updates old a rollout of an actor may be for kIMPALA or a replay memory. Updates between
            two rollouts count as one.
        algorithm: the algorithm.
        user_algorithm: the name of a registered algorithm of your own.
        rollout_steps: the steps of each environment in a rollout, or between two rows of metrics.
        discount: the factor of the next step's reward.
        evaluation_episodes: the number of episodes of a test; 0 for no tests.
        stop_return: the mean return of a test at which training ends.
        heads: the layers that the algorithm reads, such as a policy and a value; by default the layers that are no
            sources of other layers.
        replay_conf: the replay memory.
    """

    engine: ClassVar = "agents"
    no_records: ClassVar = NO_RECORDS
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

    @property
    def is_tested(self) -> bool:
        """Whether the agent is evaluated in test episodes."""
        return bool(self.evaluation_episodes)

    def check(self, job: Job) -> None:
        """Raise JobError for settings that are forbidden, or have no effect, with ``reinforcement``."""
        for layer, message in iterate_messages(job):
            check_numbers(layer, message)
            if isinstance(message, ExtensionConf):
                check_extension(message)
                check_type(layer, message)
            check_settings(layer, message)
        for name, instead in INSTEAD_OF_FIELDS.items():
            if getattr(job, name):
                raise job.error(
                    f"{name} has no effect on a job with reinforcement {{ }}: {instead}; leave it out", name
                )
        check_agents_updater(job.updater)
        for name, default in (("micro_batches", 1), ("blocks", 0)):
            if getattr(job, name) > default:
                raise job.error(f"an agent learns from batches as a whole: leave {name} out", name)
        if self.stop_return is not None and not (job.test_freq and self.evaluation_episodes):
            raise self.error(
                "stop_return is compared with the mean return of evaluations: give evaluate_every (in a job test_freq) "
                "and evaluation_episodes numbers above 0",
                "stop_return",
            )
        if self.central_inference and not self.num_actors:
            raise self.error(
                "central_inference is about actors: give actors (in a job num_actors) a number above 0",
                "central_inference",
            )
        if not job.train_steps:
            raise job.error("give train_steps: how many steps all environments take together", "train_steps")


def check_agents_updater(conf: UpdaterConf) -> None:
    """Raise JobError if the updater averages params, which agents do not support."""
    if conf.ema_conf:
        raise conf.error("ema_conf has no effect on an agent, which acts by its newest params", "ema_conf")
