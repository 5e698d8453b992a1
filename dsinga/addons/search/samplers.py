"""Lets an Optuna sampler suggest settings from the scores of earlier settings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsinga.addons.search.ranges import SearchRange
from dsinga.addons.search.space import Setting, check_space, choices_of, choose, is_distribution
from dsinga.base.advice import option
from dsinga.base.errors import UserError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

AT_ONCE = 4


class SampledSettings:
    """The settings that an Optuna sampler suggests, through its ask-and-tell interface.

    A setting is asked for when all earlier ones but the last ``at_once - 1`` have a score. The sampler is told only
    these scores, in the order of the settings. So the settings depend only on the sampler's seed and the scores, and a
    resumed search gets the same ones.

    Args:
        sampler: an Optuna sampler, such as ``optuna.samplers.TPESampler(seed=0)``.
        at_once: the settings without a score when the next one is asked for, including it.
    """

    def __init__(self, sampler: Any, space: Any, count: int | None, at_once: int = AT_ONCE):
        try:
            import optuna
        except ImportError as error:
            raise UserError(f"a sampler needs Optuna ({error}): pip install 'dsinga[optuna]'") from None
        if not isinstance(sampler, optuna.samplers.BaseSampler):
            raise UserError(f"sampler is one of Optuna's, as optuna.samplers.TPESampler(seed=0), not {sampler!r}")
        if isinstance(sampler, (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)):
            raise UserError(f"all combinations are tried without a sampler; leave out {type(sampler).__name__}")
        if count is None:
            raise UserError(f"say how many settings the sampler suggests, as in {option('samples', '20')}")
        if at_once < 1:
            raise UserError(f"a sampler has at least 1 setting at once, not {at_once}")
        if isinstance(space, list):
            raise UserError("a sampler searches one dict; give each dict of the list to a search of its own")
        check_space(space, count)
        if not space:
            raise UserError("a sampler needs values to choose from, as in {'rate': SearchRange(1e-4, 1e-1, log=True)}")
        self.count, self._at_once, self._space = count, at_once, space
        self._ranges = {name: values for name, values in space.items() if _is_range(name, values)}
        self._choices = {name: choices_of(values) for name, values in space.items() if name not in self._ranges}
        self._distributions = {name: self._distribution(name, values) for name, values in space.items()}
        self._study = optuna.create_study(sampler=copy.deepcopy(sampler))
        self._trials: list[Trial] = []
        self._told = 0

    def first(self) -> list[Setting]:
        """Ask for the settings that come before any score is known."""
        return list(iter(lambda: self.ask({}), None))

    def ask(self, scores: Mapping[int, float | None], higher: bool = False) -> Setting | None:
        """Ask for the next setting; None if there is none, or the sampler needs a missing score.

        ``scores`` has the score of each setting by its number; None or NaN if it failed.
        """
        if len(self._trials) == self.count:
            return None
        while self._told <= len(self._trials) - self._at_once:
            if self._told not in scores:
                return None
            self._tell(self._trials[self._told], scores[self._told], higher)
            self._told += 1
        trial = self._study.ask(self._distributions)
        self._trials.append(trial)
        places = {name: trial.params[name] for name in self._choices}
        # Optuna's sums of steps are 0.30000000000000004.
        drawn = {name: range_.nearest(trial.params[name]) for name, range_ in self._ranges.items()}
        return choose(self._space, places, {}, drawn)

    def _tell(self, trial: Trial, score: float | None, higher: bool) -> None:
        from optuna.trial import TrialState

        if score is None or score != score:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, -score if higher else score)

    def _distribution(self, name: str, values: Any) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if name in self._choices:
            return CategoricalDistribution(range(len(self._choices[name])))
        if values.is_whole:
            return IntDistribution(int(values.low), int(values.highest), values.log, int(values.step))
        return FloatDistribution(float(values.low), float(values.highest), values.log, values.step)


def _is_range(name: str, values: Any) -> bool:
    if is_distribution(values) and not isinstance(values, SearchRange):
        raise UserError(f"a sampler cannot look into the distribution of {name!r}; give a list or a SearchRange")
    return isinstance(values, SearchRange)
