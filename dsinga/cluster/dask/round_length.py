"""Chooses how many steps make a round."""

from __future__ import annotations

from collections.abc import Sequence

# How long a round should last: long beside the milliseconds that a task costs, short beside the time that a person
# waits for a progress line. A run of many workers has longer rounds, because the scheduler handles four messages for
# the task of each worker.
ROUND_SECONDS = 1.0
TASKS_PER_SECOND = 32


class RoundLength:
    """The number of steps in a round of about ``seconds``, at most ``most``, learnt from the rounds before: ``steps``.

    ``workers`` is the number of all workers of the run; a round lasts at least a second for each 32 of them.
    The attribute ``seconds`` is how long the next round is expected to last, 0 before the first one.
    """

    def __init__(self, most: int | None = None, workers: int = 1, seconds: float = ROUND_SECONDS) -> None:
        self.steps = 1
        self.seconds = 0.0
        self.most = most
        self._target_seconds = max(seconds, workers / TASKS_PER_SECOND)

    def learn(self, seconds: Sequence[float]) -> None:
        """Take the seconds of each step of a round into account; growth is gradual, for first steps are slow."""
        per_step = sorted(seconds)[len(seconds) // 2]
        best_steps = max(1, int(self._target_seconds / max(per_step, 1e-6)))
        self.steps = min(best_steps, self.steps * 8, self.most or best_steps)
        self.seconds = self.steps * per_step
