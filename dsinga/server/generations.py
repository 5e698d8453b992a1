"""The generations of groups: a group whose members were lost begins anew as a later one."""

from __future__ import annotations

from dsinga.errors import RunError


class Generations:
    """The generation of each group from which messages are accepted, at first ``generation`` for all.

    A process that was given up may still run and send messages: they are of an earlier generation, and are refused. Not
    thread-safe: the shard holds its lock.
    """

    def __init__(self, generation: int):
        self._first = generation
        self._generations: dict[int, int] = {}

    def set(self, group: int, generation: int) -> None:
        """Accept messages of this generation of a group only."""
        self._generations[group] = generation

    def check(self, group: int, generation: int, message: str) -> None:
        """Raise RunError if a message, such as "a push of group 1", is of another generation of its group."""
        current = self._generations.get(group, self._first)
        if generation != current:
            raise RunError(f"{message} is of generation {generation}, but the group is of generation {current}")
