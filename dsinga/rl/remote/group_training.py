"""Trains an agent by worker groups, whose params are on the servers of the run, as those of any job.

With one worker in each of several groups this is A3C (Mnih et al. 2016), with several workers in one group it is
synchronous and data-parallel, and with actors and IMPALA there are several learners, each with actors of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from typing import Any

from dsinga import api
from dsinga.arguments import check_whole, checked
from dsinga.errors import UserError
from dsinga.job import AlgConf, ClusterConf, Job
from dsinga.registry import register, unregister
from dsinga.rl.agent import Agent
from dsinga.rl.algorithm import experience_job
from dsinga.rl.algorithms.a2c import A2C
from dsinga.rl.algorithms.actor_critic import ActorCritic
from dsinga.rl.algorithms.impala import IMPALA
from dsinga.rl.algorithms.ppo import PPO
from dsinga.rl.environments import Environment, make_environments, without_registered_name
from dsinga.rl.remote.experience_learner import ExperienceLearner, GroupSettings
from dsinga.rl.remote.rollout_stream import rollouts_of_update
from dsinga.rl.setting_names import INSTEAD


@functools.partial(checked, prefix="rl.", instead=INSTEAD)
def train_in_groups(
    agent: Agent,
    environment: Environment,
    *,
    steps: int,
    groups: int = 1,
    workers: int = 1,
    actors: int = 0,
    client: Any = None,
    environments: int = 8,
    rollout_steps: int = 5,
    max_staleness: int = 8,
    cluster: ClusterConf | None = None,
    workspace: str | os.PathLike[str] | None = None,
    log_every: int = 0,
    checkpoint_every: int = 0,
    checkpoints_kept: int = 0,
    resume: bool | str | os.PathLike[str] = False,
    seed: int = 0,
    progress: bool = True,
) -> api.Result:
    """Train an agent by worker groups, and return the result of the run, in updates; the agent gets the params.

    The workers of a group learn together: their gradients are added up, as if one worker had the environments of all
    (those of a vector class of Gymnasium begin episodes in other states than these would). Groups learn independently
    of each other; the topology of servers says whether they share params (Downpour) or average them now and then
    (Hogwild). A run goes on when processes are lost; their environments begin new episodes.

    Args:
        agent: an agent of A2C, PPO or IMPALA.
        environment: as for :func:`dsinga.rl.environments.make_environments`.
        steps: steps of all environments together.
        groups: the number of worker groups.
        workers: the number of workers of each group.
        actors: the number of remote actors of each worker, which step environments while it learns, for IMPALA; with 0
            each worker steps environments itself.
        client: a Dask client; by default as for :func:`dsinga.train`.
        environments: the number of environments of each worker, or with actors of each actor.
        rollout_steps: steps of each environment in a rollout.
        max_staleness: with actors, how many updates of its group may be made between the params of a rollout and the
            update by it.
        cluster: the topology besides the numbers of groups and workers, as ``nserver_groups``; by default one server
            group.
        workspace: folder for metrics and checkpoints.
        log_every: steps of environments between rows of metrics; 0 for about a hundred rows.
        checkpoint_every: likewise between checkpoints; 0 for one at the end.
        checkpoints_kept: how many checkpoints are kept, the newest ones; 0 for all.
        resume: continue from the newest checkpoint in the workspace, as :func:`dsinga.train` does; environments begin
            new episodes.
        seed: determines the random numbers.
        progress: show a progress line.

    Raises UserError for another algorithm, and what :func:`dsinga.train` raises.
    """
    for name, number, least in (
        ("steps", steps, 1), ("groups", groups, 1), ("workers", workers, 1), ("actors", actors, 0),
        ("environments", environments, 1), ("rollout_steps", rollout_steps, 1), ("max_staleness", max_staleness, 0),
        ("log_every", log_every, 0), ("checkpoint_every", checkpoint_every, 0),
        ("checkpoints_kept", checkpoints_kept, 0),
    ):  # fmt: skip
        check_whole(name, number, least)
    if not isinstance(cluster, ClusterConf | None):
        raise UserError(f"cluster is {cluster!r}; give dsinga.job.ClusterConf(nserver_groups=..., ...)")
    algorithm = _check_agent(agent, actors)
    with contextlib.closing(make_environments(environment, 1)) as one:
        agent.check_environments(one)
    environment = without_registered_name(environment)
    settings = GroupSettings(environment, environments, rollout_steps, groups, workers, actors, max_staleness, seed)
    job, updates = _job_of(algorithm, settings, steps)
    conf = (cluster or ClusterConf()).replace(nworker_groups=groups, nworkers_per_group=workers)
    name = f"experience-{uuid.uuid4().hex}"
    job = job.replace(
        name=type(algorithm).__name__.lower(), cluster=conf, train_one_batch=AlgConf(user_alg=name),
        train_steps=updates, disp_freq=_in_updates(log_every or -(-steps // 100), steps, updates),
        checkpoint_freq=_in_updates(checkpoint_every, steps, updates), checkpoint_keep=checkpoints_kept, seed=seed,
    )  # fmt: skip
    register("algorithm", name)(ExperienceLearner(agent, settings))
    try:
        result = api.train(job, client, workspace=workspace, resume=resume, params=algorithm.params, progress=progress)
    finally:
        unregister("algorithm", name)
    algorithm.take_params(result.params)
    return result


def _in_updates(every: int, steps: int, updates: int) -> int:
    """Return a number of steps of environments as updates of a group, at least one, given those of the whole run."""
    return max(1, every * updates // steps) if every else 0


def _check_agent(agent: Agent, actors: int) -> ActorCritic:
    """Return the algorithm of an agent. Raises UserError for one that worker groups cannot have."""
    if not isinstance(agent, Agent):
        raise UserError(f"rl.train_in_groups takes an agent, dsinga.rl.Agent(algorithm), not {type(agent).__name__}")
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
        updates = algorithm.epochs * algorithm.minibatches
        batch, rest = divmod(rows, algorithm.minibatches)
        if rest:
            raise UserError(
                f"a rollout of {rows} steps cannot be divided into {algorithm.minibatches} equal minibatches; change "
                "minibatches, environments or rollout_steps"
            )
    job, examples = algorithm.learning_net(settings.rollout_steps)
    updates *= max(1, steps // (rows * settings.groups * settings.workers))
    return experience_job(job, examples, batch * settings.workers), updates
