"""The settings of a run as ``rl.train`` takes them, and the fields of a job that have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dsinga import arguments
from dsinga.arguments import check_range, check_whole
from dsinga.errors import UserError
from dsinga.job import ClusterConf, Job
from dsinga.job.reinforcementconf import ReinforcementConf, ReplayConf
from dsinga.rl.checks import INSTEAD, check_settings, check_whole_fields
from dsinga.rl.environments import Environment


@check_settings
@dataclass(frozen=True)
class ReplaySettings:
    """The replay memory of a run, and when its algorithm learns from it. Steps are of environments.

    Attributes:
        capacity: how many transitions are kept.
        batch_size: transitions of an update.
        learn_every: steps for each update.
        learn_after: steps before the first update.
        n_steps: steps of a transition.
        discount: factor of the next step's reward, gamma.
        prioritized: whether transitions of a large error are drawn more often.
    """

    capacity: int = 100_000
    batch_size: int = 32
    learn_every: int = 1
    learn_after: int = 1000
    n_steps: int = 1
    discount: float = 0.99
    prioritized: bool = False

    def __post_init__(self) -> None:
        check_whole_fields(self, capacity=1, batch_size=1, learn_every=1, learn_after=0, n_steps=1)
        check_range("discount", self.discount, 0, 1)


# The settings of a run by the message of a job that has them: the name of the field there, and the least whole number,
# None for what is no whole number. Steps are of all environments together.
JOB: dict[str, tuple[str, int | None]] = {
    "steps": ("train_steps", 1),
    "seed": ("seed", 0),
    "log_every": ("disp_freq", 0),
    "evaluate_every": ("test_freq", 0),
    "checkpoint_every": ("checkpoint_freq", 0),
    "checkpoints_kept": ("checkpoint_keep", 0),
    "name": ("name", None),
}
REINFORCEMENT: dict[str, tuple[str, int | None]] = {
    "environments": ("num_environments", 1),
    "rollout_steps": ("rollout_steps", 1),
    "actors": ("num_actors", 0),
    "central_inference": ("central_inference", None),
    "predicts_here": ("central_inference", None),  # its earlier name
    "max_staleness": ("max_staleness", 0),
    "evaluation_episodes": ("evaluation_episodes", 0),
    "stop_return": ("stop_return", None),
}
CLUSTER: dict[str, tuple[str, int | None]] = {
    "groups": ("nworker_groups", 1),
    "workers": ("nworkers_per_group", 1),
}
NAMES = (*JOB, *REINFORCEMENT, *CLUSTER, "cluster", "replay")


def with_settings(
    job: Job, settings: Mapping[str, Any], environment: Environment | None = None, function: str = "rl.train"
) -> Job:
    """Return a job with ``reinforcement`` with settings of a run, and the name of an environment, in its fields.

    Raises UserError for a setting that there is not, or of a wrong type; ``function`` is what was called with it.
    """
    arguments.check_names(function, NAMES, settings, INSTEAD)
    for name, (_, least) in {**JOB, **REINFORCEMENT, **CLUSTER}.items():
        if name in settings and least is not None:
            check_whole(name, settings[name], least)
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


def _fields(table: Mapping[str, tuple[str, int | None]], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {field: settings[name] for name, (field, _) in table.items() if name in settings}


def _replay_fields(replay: Any) -> dict[str, Any]:
    if not isinstance(replay, ReplaySettings):
        raise UserError(f"replay is {replay!r}; give dsinga.rl.ReplaySettings(capacity=..., ...)")
    fields = asdict(replay)
    return {"discount": fields.pop("discount"), "replay_conf": ReplayConf(**fields)}


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
