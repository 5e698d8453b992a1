"""Successive halving: decides when runs of a search are compared, and which runs continue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from dsinga.addons.search.metric_values import Rung
from dsinga.base.advice import option
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.extensions import ExtensionLike, create_extensions
from dsinga.reading.checked_job import CheckedJob


def make_rungs(total: int, factor: int, first: int | None, recorded: Callable[[int], int]) -> list[Rung]:
    """Choose the steps at which a search by halving compares its runs; the last rung is the whole run.

    There are three rungs by default, the second at half of the ``total`` steps. ``recorded`` returns the first step,
    starting at a given one, at which the metric is known.
    """
    if first is None:
        targets = [-(-total // (2 * factor)), -(-total // 2)]
    elif first >= total:
        raise UserError(f"first_rung is {first}, but a whole run has {total} steps; give fewer")
    else:
        targets = [first]
        while targets[-1] * factor < total:
            targets.append(targets[-1] * factor)
    steps = [total]
    for target in reversed(targets):
        if (step := recorded(target)) < steps[-1]:
            steps.append(step)
    if len(steps) == 1:
        raise UserError(
            f"halving compares runs before their end, at step {targets[-1]} of {total}, but the metric is not known "
            "before that; validate, test or display more often (validate_freq, test_freq, disp_freq)"
        )
    return [Rung(step, total) for step in reversed(steps)]


def recorded_steps(checked: CheckedJob, given: Sequence[ExtensionLike], monitor: str) -> Callable[[int], int]:
    """Return a function that rounds a step up to the next one at which the metric ``monitor`` is recorded."""
    job, epochs = checked.job, checked.epochs if checked.job.epochs else None
    phase = monitor.partition("/")[0]
    extensions = create_extensions(job, given, epochs)
    triggers = [extension.trigger for extension in extensions if extension.phase == phase]

    def recorded(step: int) -> int:
        steps = (trigger.next_step(step - 1) for trigger in triggers)
        return min((at for at in steps if at is not None), default=job.train_steps)

    return recorded


def check_halving(halving: int | None, first_rung: int | None, asynchronous: bool, is_part: bool) -> None:
    """Raise UserError for an invalid halving factor, and for options without effect."""
    if halving is None:
        if first_rung is not None or asynchronous:
            name = "asynchronous" if first_rung is None else "first_rung"
            raise UserError(f"{name} has no effect without a factor; give it with {option('halving', '3')}")
        return
    check_whole("halving", halving, 2)
    check_whole("first_rung", 1 if first_rung is None else first_rung, 1)
    if is_part:
        raise UserError("halving compares all settings, so one program trains them; leave out only, or halving")


def count_runs(settings: int, rungs: int, factor: int) -> int:
    """Return the number of runs of a synchronous search; runs in each rung count separately."""
    counts = [settings]
    while len(counts) < rungs:
        counts.append(_count_best(counts[-1], factor))
    return sum(counts)


def _count_best(settings: int, factor: int) -> int:
    return max(1, (2 * settings + factor) // (2 * factor))


class Halving:
    """Decides which settings of a search continue from one rung to the next.

    Synchronous: when all settings have ended a rung, the best 1 / ``factor`` of them, rounded, continue (Jamieson and
    Talwalkar, 2016, arXiv 1502.07943). Asynchronous: a setting continues once it is among the best 1 / ``factor``,
    rounded down, that have ended its rung so far (Li et al., 2018, arXiv 1810.05934). A setting that failed, or has a
    NaN score, never continues; if all others fail, the next best does.

    Attributes:
        scores: for each rung the score of each setting that has ended it, by number; None for a failed one.
    """

    def __init__(self, rungs: int, factor: int, higher: bool, asynchronous: bool):
        self._factor, self._higher, self._asynchronous = factor, higher, asynchronous
        self.scores: list[dict[int, float | None]] = [{} for _ in range(rungs)]
        self._going_on: set[tuple[int, int]] = set()
        self._has_news = False

    def add(self, number: int, rung: int, score: float | None) -> None:
        """Record the score with which a setting has ended a rung, None if it failed."""
        self.scores[rung][number] = score
        self._has_news = True

    def note_going_on(self, steps: Iterable[tuple[int, int]]) -> None:
        """Note the settings that already continue, with their next rung, so that :meth:`going_on` omits them."""
        self._going_on.update(steps)

    def going_on(self, busy: bool) -> list[tuple[int, int]]:
        """Return the settings that continue now, the best first, each with its next rung and only once."""
        if not self._has_news or (busy and not self._asynchronous):
            return []
        self._has_news = False
        found = self._next_of_any_rung(busy) if self._asynchronous else self._next_of_whole_rungs()
        self.note_going_on(found)
        return found

    def _next_of_whole_rungs(self) -> list[tuple[int, int]]:
        among: Sequence[int] = list(self.scores[0])
        for rung in range(len(self.scores) - 1):
            count, known = _count_best(len(among), self._factor), self._sorted(rung, among)
            while count < len(known) and all(self._has_failed(number, rung + 1) for number in known[:count]):
                count += 1  # rather than that none goes on
            among = known[:count]
            if missing := self._not_yet(among, rung + 1):
                return missing
        return []

    def _next_of_any_rung(self, busy: bool) -> list[tuple[int, int]]:
        rungs, found = range(len(self.scores) - 2, -1, -1), list[tuple[int, int]]()
        for rung in rungs:
            known = self._sorted(rung, self.scores[rung])
            found += self._not_yet(known[: len(self.scores[rung]) // self._factor], rung + 1)
        if found or busy or not all(self._has_failed(number, -1) for number in self.scores[-1]):
            return found
        best = (self._not_yet(self._sorted(rung, self.scores[rung]), rung + 1) for rung in rungs)
        return next(filter(None, best), [])[:1]  # too few for the factor: the best of them goes on

    def _not_yet(self, numbers: Iterable[int], rung: int) -> list[tuple[int, int]]:
        steps = [(number, rung) for number in numbers if number not in self.scores[rung]]
        return [step for step in steps if step not in self._going_on]

    def _has_failed(self, number: int, rung: int) -> bool:
        score = self.scores[rung].get(number, 0.0)
        return score is None or math.isnan(score)

    def _sorted(self, rung: int, among: Iterable[int]) -> list[int]:
        scores = [(self.scores[rung][number], number) for number in among]
        known = [(score, number) for score, number in scores if score is not None and not math.isnan(score)]
        known.sort(key=lambda entry: (-entry[0] if self._higher else entry[0], entry[1]))
        return [number for _, number in known]
