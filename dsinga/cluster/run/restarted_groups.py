"""The interface by which recovery starts the worker groups of a run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


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
