"""What recovery and the worker groups of a run know of each other: new starts, and the groups that start again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass
class Restart:
    """What was lost, and how long it took until the run stood where it had stood.

    Attributes:
        lost: what was lost, in words.
        noticed_at: when that was noticed, by ``time.perf_counter()``.
        step: the step from which the run has started again.
        generation: the generation that has started then.
        group: the worker group that alone has started again; None where all have.
        steps_again: the number of steps that are computed again; None for those since ``step``.
    """

    lost: str
    noticed_at: float
    step: int = 0
    generation: int = 0
    group: int | None = None
    steps_again: int | None = None


class RestartedGroups(Protocol):
    """The worker groups of a run, which start again when it has lost Dask workers."""

    def restart(self, step: int) -> None:
        """Begin at ``step``, at which a generation of the run has started."""

    def catch_up(self) -> None:
        """Train from there to the step at which the run stands."""

    def steps_read(self) -> list[int] | None:
        """Return the step up to which reports of each group were read; None while not all of them train."""

    def go_on(self, restarting: Collection[int]) -> None:
        """Let the groups that are not ``restarting`` go on."""

    def restart_groups(self, steps: Mapping[int, int]) -> None:
        """Begin some groups at the steps from which they have started again."""


class NoGroups:
    """The worker groups of a run before they train, and afterwards."""

    def restart(self, step: int) -> None:
        """Do nothing."""

    def catch_up(self) -> None:
        """Do nothing: the run stands where it has started."""

    def steps_read(self) -> list[int] | None:
        """Return None."""
        return None

    def go_on(self, restarting: Collection[int]) -> None:
        """Do nothing."""

    def restart_groups(self, steps: Mapping[int, int]) -> None:
        """Do nothing."""
