"""Says which other Dask tasks hold the threads of a run's Dask workers, where its own tasks do not begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from distributed import Client

from dsinga.cluster.dask.waiting import Announcements, how_to_give_up
from dsinga.errors import RunError
from dsinga.settings import read_setting

# Seconds without a task that ends, after which the Dask workers are asked; and between two questions.
QUIET_SECONDS = 3.0
QUESTION_SECONDS = 5.0
# Seconds that Dask workers may take to answer.
ANSWER_SECONDS = 3


class HeldThreads:
    """Looks for tasks of others in all threads of a Dask worker of a run.

    The queue of runs knows threads that runs hold, not those that other Dask tasks do: these end some time, unless they
    wait for a run themselves.
    """

    def __init__(self, client: Client, run: str, addresses: Collection[str], announce: Callable[[str], None]):
        self._client, self._run, self._addresses = client, run, sorted(addresses)
        self._announcements = Announcements(announce)
        self._ask_at = 0.0

    def check(self, quiet: float) -> None:
        """Announce the tasks that the run waits for, if no task of it has ended for ``quiet`` seconds.

        Raises RunError where this has lasted for ``dsinga.queue_timeout``.
        """
        now = time.monotonic()
        if quiet < QUIET_SECONDS or now < self._ask_at:
            return
        self._ask_at = now + QUESTION_SECONDS
        try:
            executing = self._client.run(
                _executing, workers=self._addresses, on_error="ignore", callback_timeout=ANSWER_SECONDS
            )
        except TimeoutError:  # they are busy; the question comes again
            return
        for address, (threads, names) in executing.items():
            if len(names) >= threads and not any(self._run in name for name in names):
                some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
                held = f"all threads of the Dask worker {address} run other tasks: {some}"
                if quiet >= read_setting("queue_timeout"):
                    raise RunError(f"{held}; that is as long as dsinga.queue_timeout lets the run wait")
                self._announcements.give(
                    f"{held}; the run goes on when one ends. A task that waits for a run itself must leave its "
                    f"thread meanwhile, by distributed.secede() or worker_client(). {how_to_give_up()}"
                )
                return


def _executing(dask_worker: Any) -> tuple[int, list[str]]:
    """Return the number of threads of this Dask worker, and the keys of the tasks that they execute."""
    return dask_worker.state.nthreads, [str(task.key) for task in dask_worker.state.executing]
