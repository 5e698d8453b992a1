"""Makes agents from jobs with ``reinforcement { }``, and writes the settings of ``rl.train`` into jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from dsinga.base import arguments
from dsinga.base.errors import UserError
from dsinga.base.registry import imported
from dsinga.job import ClusterConf, Job, JobError
from dsinga.job.component import component_settings, resolve, setting
from dsinga.job.limits import Unit
from dsinga.job.message import defaults, field_types, set_fields
from dsinga.job.setting_arguments import check_argument, takes_arguments
from dsinga.rl.agent import Agent
from dsinga.rl.algorithms.actor_critic import ActorCritic
from dsinga.rl.checks import INSTEAD
from dsinga.rl.environments.registered import Environment, make_environments
from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.model import Model
from dsinga.rl.reinforcement_conf import LearningAlgorithm, ReinforcementConf, ReplayConf

KIND = ReinforcementConf.kind


def algorithm_fields(algorithm: Any) -> dict[str, Any]:
    """Return the fields of ``reinforcement`` that name an algorithm; {} if it is not registered."""
    name = next((name for name, cls in imported(KIND).items() if cls is type(algorithm)), None)
    if name is None:
        return {}
    return {"algorithm": name} if name in LearningAlgorithm else {"user_algorithm": name}


def reinforcement_of(job: Job) -> ReinforcementConf:
    """Return the ``reinforcement`` settings of a job; raise UserError if it has none."""
    if job.reinforcement is None:
        raise UserError(f"the job {job.name!r} has no reinforcement {{ ... }}; train it by dsinga.train")
    return job.reinforcement


def agent_of(job: Job, spaces: Spaces) -> Agent:
    """Make a job's agent for environments with these spaces."""
    conf = reinforcement_of(job)
    if not conf.type_name:
        raise conf.error("ReinforcementConf needs the field 'algorithm'")
    cls = resolve(conf)
    own = getattr(cls, "Conf", None)
    for _, settings_of in component_settings(KIND):
        field_name = settings_of.field
        if settings_of is not own and getattr(conf, field_name) is not None:
            raise conf.error(f"{field_name} has no effect on {conf.type_name}; leave it out", field_name)
    if cls.on_policy and conf.replay_conf is not None:
        raise conf.error(f"replay_conf has no effect on {conf.type_name}; leave it out", "replay_conf")
    settings = {} if own is None else set_fields(conf.settings_of(own))
    if issubclass(cls, ActorCritic):  # for other algorithms the replay memory discounts
        settings["discount"] = conf.discount
    try:
        model = Model(job, conf.heads)
    except JobError:
        raise
    except UserError as error:  # the error is about the job's net or heads
        raise conf.error(str(error), "heads" if conf.heads else None) from None
    # If the job names no updater, use the algorithm's default.
    updater = None if job.updater == defaults(Job)["updater"] else job.updater
    return Agent(cls(model, spaces, seed=job.seed, updater=updater, **settings), seed=job.seed)


def net_job(job: Job) -> Job:
    """Return the job of the net that an agent of a job trains, with losses, to show or check it."""
    conf = reinforcement_of(job)
    with contextlib.closing(make_environments(conf.environment, 1)) as one:
        return agent_of(job, one.spaces).algorithm.job(conf.num_environments).replace(name=job.name)


@takes_arguments(INSTEAD)
class ReplaySettings(ReplayConf):
    """The size of a replay memory, and when the agent learns from it. Steps count all environments."""

    discount: Unit = setting(0.99, "factor of the next step's reward, gamma")


# A job's fields, by the names of a run's settings. Steps are of all environments together.
JOB = {
    "steps": "train_steps",
    "seed": "seed",
    "log_every": "disp_freq",
    "evaluate_every": "test_freq",
    "checkpoint_every": "checkpoint_freq",
    "checkpoints_kept": "checkpoint_keep",
    "name": "name",
}
REINFORCEMENT = {
    "environments": "num_environments",
    "rollout_steps": "rollout_steps",
    "actors": "num_actors",
    "central_inference": "central_inference",
    "max_staleness": "max_staleness",
    "evaluation_episodes": "evaluation_episodes",
    "stop_return": "stop_return",
}
CLUSTER = {"groups": "nworker_groups", "workers": "nworkers_per_group"}
NAMES = (*JOB, *REINFORCEMENT, *CLUSTER, "cluster", "replay")


def with_settings(job: Job, settings: Mapping[str, Any], environment: Environment | None = None) -> Job:
    """Write the arguments of ``rl.train`` into a job's fields; return the new job."""
    arguments.check_names("rl.train", NAMES, settings, INSTEAD)
    for table, message in ((JOB, Job), (REINFORCEMENT, ReinforcementConf), (CLUSTER, ClusterConf)):
        for name, field in table.items():
            if name in settings:
                check_argument(name, settings[name], field_types(message)[field])
    conf, cluster = job.reinforcement, settings.get("cluster", job.cluster)
    assert conf is not None
    if not isinstance(cluster, ClusterConf | None):
        raise UserError(f"cluster is {cluster!r}; give dsinga.job.ClusterConf(nserver_groups=..., ...)")
    if topology := _fields(CLUSTER, settings):
        cluster = (cluster or ClusterConf()).replace(**topology)
    fields = _fields(REINFORCEMENT, settings)
    if environment is not None:
        fields["environment"] = name_of(environment)
    if "replay" in settings:
        fields |= _replay_fields(settings["replay"])
    return job.replace(cluster=cluster, reinforcement=conf.replace(**fields), **_fields(JOB, settings))


def _fields(table: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {field: settings[name] for name, field in table.items() if name in settings}


def _replay_fields(replay: Any) -> dict[str, Any]:
    if not isinstance(replay, ReplaySettings):
        raise UserError(f"replay is {replay!r}; give dsinga.rl.ReplaySettings(capacity=..., ...)")
    fields = {name: getattr(replay, name) for name in field_types(ReplayConf)}
    return {"discount": replay.discount, "replay_conf": fields}


def name_of(environment: Environment) -> str:
    """Return the name of an environment for messages, "" for a function without a name."""
    return environment if isinstance(environment, str) else getattr(environment, "__name__", "")


def layout_of(conf: ReinforcementConf) -> dict[str, Any]:
    """Return the settings that a resumed run must share with the saved one."""
    return {
        "environment": conf.environment,
        "environments": conf.num_environments,
        "actors": conf.num_actors,
        "central_inference": conf.central_inference,
    }
