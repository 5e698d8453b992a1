"""The settings of a run as ``rl.train`` takes them, and the fields of a job that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga import arguments
from dsinga.errors import UserError
from dsinga.job import ClusterConf, Job
from dsinga.job.component import setting
from dsinga.job.limits import Unit
from dsinga.job.message import field_types
from dsinga.job.reinforcementconf import ReinforcementConf, ReplayConf
from dsinga.job.setting_arguments import check_argument, takes_arguments
from dsinga.rl.checks import INSTEAD
from dsinga.rl.environments import Environment


@takes_arguments(INSTEAD)
class ReplaySettings(ReplayConf):
    """The replay memory of a run, and when its algorithm learns from it. Steps are of environments."""

    discount: Unit = setting(0.99, "factor of the next step's reward, gamma")


# The fields of messages of a job by the settings of a run that they have. Steps are of all environments together.
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
    "predicts_here": "central_inference",  # its earlier name
    "max_staleness": "max_staleness",
    "evaluation_episodes": "evaluation_episodes",
    "stop_return": "stop_return",
}
CLUSTER = {"groups": "nworker_groups", "workers": "nworkers_per_group"}
NAMES = (*JOB, *REINFORCEMENT, *CLUSTER, "cluster", "replay")


def with_settings(
    job: Job, settings: Mapping[str, Any], environment: Environment | None = None, function: str = "rl.train"
) -> Job:
    """Return a job with ``reinforcement`` with settings of a run, and the name of an environment, in its fields.

    Raises UserError for a setting that there is not, or of a wrong type; ``function`` is what was called with it.
    """
    arguments.check_names(function, NAMES, settings, INSTEAD)
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
    """Return the name of an environment, "" where a function has none."""
    return environment if isinstance(environment, str) else getattr(environment, "__name__", "")


def layout_of(conf: ReinforcementConf) -> dict[str, Any]:
    """Return what a run has in common with the run whose checkpoint it goes on from."""
    return {
        "environment": conf.environment,
        "environments": conf.num_environments,
        "actors": conf.num_actors,
        "central_inference": conf.central_inference,
    }
