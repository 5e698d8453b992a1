"""Waiting for a scheduler that is started again after the one of a run was lost, and for its Dask workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from distributed import Client
from distributed.security import Security

from dsinga.cluster.connecting.credentials import find_credentials
from dsinga.cluster.connecting.scheduler_probe import check_scheduler, with_scheme
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.errors import SchedulerLost, UserError
from dsinga.regular_files import read_regular_text

# Seconds between two attempts to reach a scheduler, and for one attempt.
ATTEMPT_SECONDS, CONNECT_SECONDS = 0.2, 1.0


def await_scheduler(
    address: str | None, file: str | None, security: Security | None, seconds: float, check: Callable[[], None]
) -> None:
    """Wait until a scheduler answers at ``address``, or at the address in ``file``, which is read anew each time.

    ``check`` is called several times a second; what it raises ends the wait. Raises SchedulerLost after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        check()
        try:
            place = address or str(json.loads(read_regular_text(file or ""))["address"])
            credentials = find_credentials(place, security)
            check_scheduler(with_scheme(place, credentials), credentials, CONNECT_SECONDS)
            return
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:  # no file yet, or that of the lost one
            if time.monotonic() > deadline:
                raise SchedulerLost(f"no scheduler has come back within {seconds:g} s: {error}") from error
        threading.Event().wait(ATTEMPT_SECONDS)


def await_as_many_workers(client: Client, count: int, seconds: float, check: Callable[[], None]) -> None:
    """Wait until a scheduler has ``count`` Dask workers again. Raises SchedulerLost after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (there := len(available_workers(client))) < count:
        check()
        if time.monotonic() > deadline:
            raise SchedulerLost(f"only {there} of {count} Dask workers have come back within {seconds:g} s")
        threading.Event().wait(ATTEMPT_SECONDS)
