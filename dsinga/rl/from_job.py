"""Agents and settings of runs that a job describes by ``reinforcement { }``."""

from __future__ import annotations

import contextlib
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Job, JobError
from dsinga.job.message import defaults, set_fields
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
from dsinga.rl.spaces import Spaces

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


def kind_of(algorithm: Any) -> LearningAlgorithm | None:
    """Return the name of an algorithm in a job, None for one that jobs do not have."""
    return next((kind for kind, (cls, _) in ALGORITHMS.items() if type(algorithm) is cls), None)


def reinforcement_of(job: Job) -> ReinforcementConf:
    """Return what a job says of reinforcement learning. Raises UserError where it says nothing."""
    if job.reinforcement is None:
        raise UserError(f"the job {job.name!r} has no reinforcement {{ ... }}; train it by dsinga.train")
    return job.reinforcement


def agent_of(job: Job, spaces: Spaces) -> Agent:
    """Return the agent that a job describes, for environments with these spaces. Raises UserError for a fault in it."""
    conf = reinforcement_of(job)
    if conf.algorithm is None:
        raise conf.error("ReinforcementConf needs the field 'algorithm'")
    cls, field = ALGORITHMS[conf.algorithm]
    for _, other in ALGORITHMS.values():
        if other != field and getattr(conf, other) is not None:
            raise conf.error(f"{other} has no effect on {conf.algorithm.name}; leave it out", other)
    if cls.on_policy and conf.replay_conf is not None:
        raise conf.error(f"replay_conf has no effect on {conf.algorithm.name}; leave it out", "replay_conf")
    message = getattr(conf, field)
    settings = {} if message is None else set_fields(message)
    if issubclass(cls, ActorCritic):  # for the others the replay memory discounts
        settings["discount"] = conf.discount
    try:
        model = Model(job.neuralnet, conf.heads)
    except JobError:
        raise
    except UserError as error:  # about the net as a whole, or a head, which the job names
        raise conf.error(str(error), "heads" if conf.heads else None) from None
    # Where the job names no updater, the algorithm has a default of its own.
    updater = None if job.updater == defaults(Job)["updater"] else job.updater
    return Agent(cls(model, spaces, seed=job.seed, updater=updater, **settings), seed=job.seed)


def net_job(job: Job) -> Job:
    """Return a job of the net that a job with ``reinforcement { }`` trains, with the losses of its algorithm."""
    conf = reinforcement_of(job)
    with contextlib.closing(make_environments(conf.environment, 1)) as one:
        return agent_of(job, one.spaces).algorithm.job(conf.num_environments).replace(name=job.name)
