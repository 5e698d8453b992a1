"""RunSettings: what a run of reinforcement learning does besides learning, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dsinga import arguments
from dsinga.arguments import check_range
from dsinga.errors import UserError
from dsinga.rl.checks import check_whole_fields
from dsinga.rl.environments import Environment
from dsinga.rl.setting_names import INSTEAD, check_settings


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


@dataclass(frozen=True)
class RunSettings:
    """The environments of a run, its length, and how often it is shown, evaluated and saved. Steps are of environments.

    Attributes:
        environment: a name, class or function, as for :func:`dsinga.rl.make_environments`.
        steps: the length of the run, in steps of all environments together.
        environments: how many environments are stepped together.
        rollout_steps: steps of each environment in a rollout; for algorithms with a replay memory, those between two
            looks at whether a row, an evaluation or a checkpoint is due.
        actors: how many actors on a Dask cluster step so many environments each; 0 steps them in this process.
        predicts_here: whether actors send observations, and this process chooses all actions (GA3C); else actors
            choose them.
        max_staleness: with actors and an algorithm that corrects for actions of older params, how many updates may be
            made between the params of a rollout and the update by it.
        replay: the replay memory, for algorithms that learn from one.
        seed: determines the random numbers of the environments.
        log_every: steps between rows of metrics; 0 for about a hundred rows.
        evaluate_every: steps between evaluations; 0 for one at the end.
        evaluation_episodes: episodes of an evaluation; 0 for none.
        stop_return: the run ends when an evaluation has this mean return; None for never.
        checkpoint_every: steps between checkpoints; 0 for one at the end.
        checkpoints_kept: how many checkpoints are kept, the newest ones; 0 for all.
        name: the name of the run.
    """

    environment: Environment
    steps: int
    environments: int = 8
    rollout_steps: int = 128
    actors: int = 0
    predicts_here: bool = False
    max_staleness: int = 8
    replay: ReplaySettings = ReplaySettings()
    seed: int = 0
    log_every: int = 0
    evaluate_every: int = 0
    evaluation_episodes: int = 10
    stop_return: float | None = None
    checkpoint_every: int = 0
    checkpoints_kept: int = 0
    name: str = "model"

    def __post_init__(self) -> None:
        check_whole_fields(self, steps=1, environments=1, rollout_steps=1, actors=0, max_staleness=0, seed=0)
        check_whole_fields(self, log_every=0, evaluate_every=0, evaluation_episodes=0)
        check_whole_fields(self, checkpoint_every=0, checkpoints_kept=0)
        if not isinstance(self.replay, ReplaySettings):
            raise UserError(f"replay is {self.replay!r}; give dsinga.rl.ReplaySettings(capacity=..., ...)")
        if self.stop_return is not None and not (self.evaluate_every and self.evaluation_episodes):
            raise UserError(
                "stop_return is compared with the mean return of evaluations: give evaluate_every (in a job test_freq) "
                "and evaluation_episodes numbers above 0"
            )
        if self.predicts_here and not self.actors:
            raise UserError("predicts_here is about actors: give actors (in a job num_actors) a number above 0")

    def layout(self) -> dict[str, Any]:
        """Return what a run has in common with the run whose checkpoint it goes on from."""
        environment = self.environment
        name = environment if isinstance(environment, str) else getattr(environment, "__name__", "")
        numbers = {"environments": self.environments, "actors": self.actors, "predicts_here": self.predicts_here}
        return {"environment": name, **numbers}


def check_names(settings: Mapping[str, Any]) -> None:
    """Raise UserError for a name that is no field of :class:`RunSettings`."""
    names = [field.name for field in fields(RunSettings)]
    arguments.check_names("rl.train", names[1:], settings, INSTEAD)


def is_due(step: int, before: int, every: int) -> bool:
    """Whether a multiple of ``every`` is in the steps after ``before`` up to ``step``; never for 0."""
    return every > 0 and step // every > before // every
