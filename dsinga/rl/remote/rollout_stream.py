"""Takes rollouts from remote actors, made with params that are at most a set number of updates old."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import numpy as np

from dsinga.rl.remote.actor_pool import ActorPool, Call
from dsinga.rl.remote.rollout_actor import ActorRollout, pack_params


class RolloutStream:
    """Takes each actor's rollout on arrival, while other actors go on with older params (IMPALA).

    An actor gets the newest params with each rollout. A rollout is at most ``max_staleness`` updates old when it is
    learnt: the learner waits for slower actors, and actors wait for a slower learner.

    Args:
        batch: rollouts in an update; 0 for as many as keep all actors busy.
        max_staleness: the most updates between a rollout's params and its update.
        method: the method of :class:`RolloutActor` that returns rollouts.
    """

    def __init__(
        self,
        actors: ActorPool,
        *,
        batch: int = 0,
        max_staleness: int = 8,
        method: str = "rollout",
        pack: Callable[[Mapping[str, np.ndarray]], bytes] = pack_params,
    ):
        self.actors, self._method, self._pack = actors, method, pack
        self.batch, self.max_staleness = batch or rollouts_of_update(actors.count, max_staleness), max_staleness
        self.version = 0
        self._packed = b""  # the params of this version, once they are needed
        self._rollouts = [0] * actors.count
        self._idle = deque(range(actors.count))
        self._running: dict[Call, tuple[int, int]] = {}  # the actor and the version of each call
        self._ended: SimpleQueue[Call] = SimpleQueue()
        self._arrived: list[tuple[int, int, ActorRollout[Any]]] = []  # with the version and the actor

    def take(self, steps: int, params: Mapping[str, np.ndarray]) -> list[ActorRollout[Any]]:
        """Wait for the next update's rollouts, and return them; send ``params`` to idle actors.

        The oldest come first. Raises RunError if an environment fails, or if there is no Dask worker for an actor.
        """
        self._packed = b""
        while True:
            self._start_idle(steps, params)
            self._collect()
            if len(self._arrived) >= self.batch and not self._must_wait():
                break
        self._start_idle(steps, params)  # also actors of the rollouts that are learnt now
        part, self._arrived = self._arrived[: self.batch], self._arrived[self.batch :]
        self.version += 1
        return [result for _, _, result in part]

    def _start_idle(self, steps: int, params: Mapping[str, np.ndarray]) -> None:
        """Start idle actors, unless their rollouts would be too old when they are learnt."""
        while self._idle and len(self._running) + len(self._arrived) < self.batch * (self.max_staleness + 1):
            number = self._idle.popleft()
            self._packed = self._packed or self._pack(params)
            call = self.actors.start(number, self._method, self._packed, self.version, self._rollouts[number], steps)
            self._rollouts[number] += 1
            self._running[call] = (number, self.version)
            call.add_done_callback(self._ended.put)

    def _collect(self) -> None:
        """Take the rollouts that have arrived; wait for another if an update is not possible yet."""
        waits = len(self._arrived) < self.batch or self._must_wait()
        while waits or not self._ended.empty():
            call, waits = self._ended.get(), False
            number, version = self._running.pop(call)
            self._idle.append(number)
            self._arrived.append((version, number, call.result()))
        self._arrived.sort(key=lambda arrival: arrival[:2])

    def _must_wait(self) -> bool:
        """Whether an update now would make a pending rollout too old to be learnt."""
        versions = [version for version, _, _ in self._arrived[self.batch :]]
        versions += [version for _, version in self._running.values()]
        following = self.version + 1
        return any(
            following + place // self.batch - version > self.max_staleness
            for place, version in enumerate(sorted(versions))
        )

    def state(self) -> dict[str, Any]:
        """Return the numbers of updates and of each actor's rollouts, for a resumed run."""
        return {"version": self.version, "rollouts": list(self._rollouts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state`."""
        self.version = int(state["version"])
        # If there are more actors than before, the new ones draw their first random numbers.
        self._rollouts[: len(state["rollouts"])] = map(int, state["rollouts"][: self.actors.count])

    def close(self) -> None:
        """Cancel the pending calls, and release the actors."""
        self.actors.close()


def rollouts_of_update(actors: int, max_staleness: int) -> int:
    """Return how many rollouts an update needs so that all actors stay busy and no rollout gets too old."""
    return -(-actors // (max_staleness + 1))
