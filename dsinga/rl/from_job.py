"""Agents and settings of runs that a job describes by ``reinforcement { }``."""

from __future__ import annotations

import contextlib
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Job, JobError
from dsinga.job.component import component_settings
from dsinga.job.message import defaults, set_fields
from dsinga.job.reinforcementconf import LearningAlgorithm, ReinforcementConf
from dsinga.registry import entries
from dsinga.rl.agent import Agent
from dsinga.rl.algorithms.actor_critic import ActorCritic
from dsinga.rl.environments import make_environments
from dsinga.rl.model import Model
from dsinga.rl.spaces import Spaces
from dsinga.training.resolve import resolve

KIND = ReinforcementConf.kind


def algorithm_fields(algorithm: Any) -> dict[str, Any]:
    """Return the fields of ``reinforcement`` that name an algorithm; none for one that is not registered."""
    name = next((name for name, cls in entries(KIND).items() if cls is type(algorithm)), None)
    if name is None:
        return {}
    return {"algorithm": name} if name in LearningAlgorithm else {"user_algorithm": name}


def reinforcement_of(job: Job) -> ReinforcementConf:
    """Return what a job says of reinforcement learning. Raises UserError where it says nothing."""
    if job.reinforcement is None:
        raise UserError(f"the job {job.name!r} has no reinforcement {{ ... }}; train it by dsinga.train")
    return job.reinforcement


def agent_of(job: Job, spaces: Spaces) -> Agent:
    """Return the agent that a job describes, for environments with these spaces. Raises UserError for a fault in it."""
    conf = reinforcement_of(job)
    if not conf.type_name:
        raise conf.error("ReinforcementConf needs the field 'algorithm'")
    cls = resolve(conf)
    own = getattr(cls, "Conf", None)
    for _, other in component_settings(KIND):
        if other is not own and getattr(conf, other.field) is not None:
            raise conf.error(f"{other.field} has no effect on {conf.type_name}; leave it out", other.field)
    if cls.on_policy and conf.replay_conf is not None:
        raise conf.error(f"replay_conf has no effect on {conf.type_name}; leave it out", "replay_conf")
    settings = {} if own is None else set_fields(conf.settings_of(own))
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
