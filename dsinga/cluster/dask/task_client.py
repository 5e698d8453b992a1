"""The Dask client of the worker that runs a task, made so that it outlives the task."""

from __future__ import annotations

import contextvars
import threading

from distributed import Client, get_worker

_making = threading.Lock()


def task_client() -> Client | None:
    """Return the client of the Dask worker that runs the calling task, None outside of tasks.

    Dask makes it when a task first asks for one, and what runs in it keeps the context variables of that moment, with
    which Dask measures the task. If that was a task of a cluster that has been started within a task, the client stops
    hearing its scheduler when this inner cluster is closed: it would report its messages to an event loop that is gone.
    So the client is made here without any context. Only one thread makes it: Dask would give a second one, of another
    Dask worker of this process, the client that is still connecting.
    """
    try:
        worker = get_worker()
    except ValueError:  # this is no task
        return None
    with _making:
        return contextvars.Context().run(worker._get_client)
