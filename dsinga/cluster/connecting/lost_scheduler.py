"""Waiting for a scheduler that is started again after the one of a run was lost, and for its Dask workers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from distributed import Client
from distributed.security import Security

from dsinga.cluster.connecting.credentials import find_credentials
from dsinga.cluster.connecting.scheduler_probe import check_scheduler, with_scheme
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, wait_until
from dsinga.errors import SchedulerLost, UserError
from dsinga.regular_files import read_regular_text

# Seconds for one attempt to reach a scheduler.
CONNECT_SECONDS = 1.0

_log = logging.getLogger(__name__)


def await_scheduler(
    address: str | None, file: str | None, security: Security | None, seconds: float, check: Callable[[], None]
) -> None:
    """Wait until a scheduler answers at ``address``, or at the address in ``file``, which is read anew each time.

    ``check`` is called several times a second; what it raises ends the wait. Raises SchedulerLost after ``seconds``.
    """

    def connect(_: float) -> StillWaiting | None:
        check()
        try:
            place = address or str(json.loads(read_regular_text(file or ""))["address"])
            credentials = find_credentials(place, security)
            check_scheduler(with_scheme(place, credentials), credentials, CONNECT_SECONDS)
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:  # no file yet, or that of the lost one
            failure = SchedulerLost(f"no scheduler has come back within {seconds:g} s: {error}")
            return StillWaiting(f"no scheduler has come back yet: {error}", failure)
        return None

    wait_until(connect, seconds, Announcements(_log.warning))


def await_as_many_workers(client: Client, count: int, seconds: float, check: Callable[[], None]) -> None:
    """Wait until a scheduler has ``count`` Dask workers again. Raises SchedulerLost after ``seconds``."""

    def count_workers(_: float) -> StillWaiting | None:
        present = len(available_workers(client))
        sentence = f"only {present} of {count} Dask workers have come back"
        failure = SchedulerLost(f"{sentence} within {seconds:g} s")
        return None if present >= count else StillWaiting(f"{sentence} yet", failure, topic=present)

    wait_until(count_workers, seconds, Announcements(_log.warning), check)
