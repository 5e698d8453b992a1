"""Agents and settings of runs that a job describes by ``reinforcement { }``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from dsinga.api.trained import trained_params
from dsinga.errors import UserError
from dsinga.job import Job, JobError, UpdaterConf
from dsinga.job.checks import check_reinforcement
from dsinga.job.message import Message, defaults, set_fields
from dsinga.job.reinforcementconf import LearningAlgorithm, ReinforcementConf
from dsinga.rl.agent import Agent
from dsinga.rl.algorithms.a2c import A2C
from dsinga.rl.algorithms.actor_critic import ActorCritic
from dsinga.rl.algorithms.ddpg import DDPG
from dsinga.rl.algorithms.dqn import DQN
from dsinga.rl.algorithms.es import ES
from dsinga.rl.algorithms.impala import IMPALA
from dsinga.rl.algorithms.ppo import PPO
from dsinga.rl.algorithms.reinforce import REINFORCE
from dsinga.rl.algorithms.td3 import TD3
from dsinga.rl.environments import make_environments
from dsinga.rl.model import Model
from dsinga.rl.run_settings import ReplaySettings, RunSettings
from dsinga.rl.spaces import Spaces
from dsinga.training import check_params

# The class of each algorithm, and the field of ``reinforcement`` that has its settings.
ALGORITHMS: dict[LearningAlgorithm, tuple[type[Any], str]] = {
    LearningAlgorithm.kPPO: (PPO, "ppo_conf"),
    LearningAlgorithm.kA2C: (A2C, "a2c_conf"),
    LearningAlgorithm.kREINFORCE: (REINFORCE, "reinforce_conf"),
    LearningAlgorithm.kIMPALA: (IMPALA, "impala_conf"),
    LearningAlgorithm.kES: (ES, "es_conf"),
    LearningAlgorithm.kDQN: (DQN, "dqn_conf"),
    LearningAlgorithm.kDDPG: (DDPG, "ddpg_conf"),
    LearningAlgorithm.kTD3: (TD3, "td3_conf"),
}


def reinforcement_of(job: Job) -> ReinforcementConf:
    """Return what a job says of reinforcement learning. Raises UserError where it says nothing."""
    if job.reinforcement is None:
        raise UserError(f"the job {job.name!r} has no reinforcement {{ ... }}; train it by dsinga.train")
    return job.reinforcement


def agent_of(job: Job, spaces: Spaces) -> Agent:
    """Return the agent that a job describes, for environments with these spaces. Raises UserError for a fault in it."""
    conf = reinforcement_of(job)
    cls, field = ALGORITHMS[conf.algorithm]
    for _, other in ALGORITHMS.values():
        if other != field and getattr(conf, other) is not None:
            raise conf.error(f"{other} has no effect on {conf.algorithm.name}; leave it out", other)
    if cls.on_policy and conf.replay_conf is not None:
        raise conf.error(f"replay_conf has no effect on {conf.algorithm.name}; leave it out", "replay_conf")
    settings = fields_of(getattr(conf, field))
    if issubclass(cls, ActorCritic):  # for the others the replay memory discounts
        settings["discount"] = conf.discount
    try:
        model = Model(job.neuralnet, conf.heads)
    except JobError:
        raise
    except UserError as error:  # about the net as a whole, or a head, which the job names
        raise conf.error(str(error), "heads" if conf.heads else None) from None
    return Agent(cls(model, spaces, seed=job.seed, updater=updater_of(job), **settings), seed=job.seed)


def net_job(job: Job) -> Job:
    """Return a job of the net that a job with ``reinforcement { }`` trains, with the losses of its algorithm."""
    conf = reinforcement_of(job)
    with contextlib.closing(make_environments(conf.environment, 1)) as one:
        return agent_of(job, one.spaces).algorithm.job(conf.num_environments).replace(name=job.name)


def trained_agent(job: Job, checkpoint: str | os.PathLike[str] | None = None) -> Agent:
    """Return the agent of a job with the params of a checkpoint, by default the newest one in its workspace.

    Raises UserError where there is none, or where it is that of another net.
    """
    with contextlib.closing(make_environments(reinforcement_of(job).environment, 1)) as one:
        agent = agent_of(job, one.spaces)
    params = trained_params(job, checkpoint, [])
    check_params(agent.algorithm.net.net, params)
    agent.algorithm.params = params
    return agent


def fields_of(message: Message | None) -> dict[str, Any]:
    """Return the fields of a message that it sets."""
    return {} if message is None else set_fields(message)


def updater_of(job: Job) -> UpdaterConf | None:
    """Return the updater that a job names, None where it names none: the algorithm has a default of its own."""
    return None if job.updater == defaults(Job)["updater"] else job.updater


def run_settings_of(job: Job) -> RunSettings:
    """Return when the run of a job is shown, evaluated and saved, and how long it is."""
    conf = reinforcement_of(job)
    check_reinforcement(job)
    return RunSettings(
        environment=conf.environment,
        steps=job.train_steps,
        environments=conf.num_environments,
        rollout_steps=conf.rollout_steps,
        actors=conf.num_actors,
        predicts_here=conf.predicts_here,
        max_staleness=conf.max_staleness,
        replay=ReplaySettings(discount=conf.discount, **fields_of(conf.replay_conf)),
        seed=job.seed,
        log_every=job.disp_freq,
        evaluate_every=job.test_freq,
        evaluation_episodes=conf.evaluation_episodes,
        stop_return=conf.stop_return,
        checkpoint_every=job.checkpoint_freq,
        checkpoints_kept=job.checkpoint_keep,
        name=job.name,
    )


def workspace_of(job: Job) -> Path | None:
    """Return the workspace that a job names, None without one."""
    return Path(job.cluster.workspace) if job.cluster and job.cluster.workspace else None
