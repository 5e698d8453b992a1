"""Trains an agent by worker groups, whose params are on the servers of the run, as those of any job.

With one worker in each of several groups this is A3C (Mnih et al. 2016), with several workers in one group it is
synchronous and data-parallel, and with actors and IMPALA there are several learners, each with actors of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dsinga.base.errors import UserError
from dsinga.extensions import AtEnd, EverySteps, Extension, ExtensionLike, LoopView
from dsinga.job import AlgConf, ClusterConf, Job, Phase, training_phases
from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import experience_job
from dsinga.rl.algorithms.actor_critic import ActorCritic
from dsinga.rl.algorithms.impala import IMPALA
from dsinga.rl.algorithms.ppo import A2C, PPO
from dsinga.rl.environments.registered import make_environments, without_registered_name
from dsinga.rl.evaluation import evaluate
from dsinga.rl.from_job import reinforcement_of
from dsinga.rl.remote.experience_learner import ExperienceLearner, GroupSettings
from dsinga.rl.remote.rollout_stream import rollouts_of_update
from dsinga.rl.training import AgentTask, stopping_rules


class AgentEvaluation(Extension):
    """Evaluates an agent with the params of this step, and adds the mean return and length to the history.

    Args:
        task: the agent and its environment.
        every: after how many updates, besides the end; 0 for at the end only.
    """

    phase = "test"

    def __init__(self, task: AgentTask, every: int):
        self._task = task
        self.trigger = EverySteps(every) | AtEnd() if every else AtEnd()

    def run(self, loop: LoopView) -> None:
        """Evaluate."""
        task, conf = self._task, reinforcement_of(self._task.job)
        task.agent.algorithm.take_params(loop.params())
        episodes = evaluate(task.agent, task.environment, conf.evaluation_episodes, seed=task.job.seed)
        loop.record("test", episodes.summary())


class GroupTraining:
    """The training of an agent by worker groups as a job of the cluster.

    The workers of a group learn together: their gradients are added up, as if one worker had the environments of all
    (those of a vector class of Gymnasium begin episodes in other states than these would). Groups learn independently
    of each other; the topology of servers says whether they share params (Downpour) or average them now and then
    (Hogwild). A run goes on when processes are lost; their environments begin new episodes.

    Args:
        task: an agent of A2C, PPO or IMPALA, and its environment.

    Attributes:
        job: the job of the net that learns, fed with experience; its steps are updates.

    Raises UserError for another algorithm, and for what worker groups do not do.
    """

    def __init__(self, task: AgentTask):
        self._task, conf, steps = task, reinforcement_of(task.job), task.job.train_steps
        if conf.central_inference:
            raise conf.error(
                "reinforcement.central_inference has no effect on worker groups; leave it out", "central_inference"
            )
        algorithm = _check_agent(task.agent, conf.num_actors)
        with contextlib.closing(make_environments(task.environment, 1)) as environments:
            task.agent.check_environments(environments)
        cluster = task.job.cluster or ClusterConf()
        settings = GroupSettings(
            without_registered_name(task.environment), conf.num_environments, conf.rollout_steps,
            cluster.nworker_groups, cluster.nworkers_per_group, conf.num_actors, conf.max_staleness, task.job.seed,
        )  # fmt: skip
        job, updates = _job_of(algorithm, settings, steps)

        def in_updates(every: int) -> int:
            return max(1, every * updates // steps) if every else 0

        learner = ExperienceLearner(task.agent, settings)
        self._evaluate_every = in_updates(task.job.test_freq)
        self.job = job.replace(
            name=task.job.name, cluster=cluster, train_steps=updates, seed=task.job.seed,
            train_one_batch=AlgConf(user_alg="experience").with_function(learner),
            disp_freq=in_updates(task.job.disp_freq or -(-steps // 100)),
            checkpoint_freq=in_updates(task.job.checkpoint_freq), checkpoint_keep=task.job.checkpoint_keep,
            checkpoint_path=task.job.checkpoint_path, extension=task.job.extension,
        )  # fmt: skip

    def extensions(self, given: Sequence[ExtensionLike]) -> list[ExtensionLike]:
        """Return the extensions of the run: the evaluation, those ``given``, and the rule of ``stop_return``."""
        job = self._task.job
        evaluations = [AgentEvaluation(self._task, self._evaluate_every)] if Phase.kTest in training_phases(job) else []
        return [*evaluations, *given, *stopping_rules(job)]


def _check_agent(agent: Agent, actors: int) -> ActorCritic:
    """Return the algorithm of an agent. Raises UserError for one that worker groups cannot have."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, A2C | PPO | IMPALA):
        raise UserError(f"worker groups learn by A2C, PPO or IMPALA, not by {type(algorithm).__name__}")
    if actors and not algorithm.corrects_older_actions:
        raise UserError(
            f"the actors of worker groups act by older params, for which {type(algorithm).__name__} does not correct; "
            "learn by IMPALA, or leave actors out"
        )
    if type(agent).learn is not Agent.learn:
        raise UserError(
            f"worker groups do not call the method learn of {type(agent).__name__}; prepare experience in the "
            "environment, as by a wrapper of Gymnasium"
        )
    return algorithm


def _job_of(algorithm: ActorCritic, settings: GroupSettings, steps: int) -> tuple[Job, int]:
    """Return the job of an algorithm's net, fed with experience, and the number of its steps, which are updates."""
    rollouts = rollouts_of_update(settings.actors, settings.max_staleness) or 1
    count = rollouts * settings.environments  # environments of an update of one worker
    rows, updates = count * settings.rollout_steps, 1
    batch = count if isinstance(algorithm, IMPALA) else rows  # its records are sequences
    if isinstance(algorithm, PPO):
        minibatches = algorithm.settings.minibatches
        updates = algorithm.settings.epochs * minibatches
        batch, rest = divmod(rows, minibatches)
        if rest:
            raise UserError(
                f"a rollout of {rows} steps cannot be divided into {minibatches} equal minibatches; change "
                "minibatches, environments or rollout_steps"
            )
    job, examples = algorithm.learning_net(settings.rollout_steps)
    updates *= max(1, steps // (rows * settings.groups * settings.workers))
    return experience_job(job, examples, batch * settings.workers), updates
