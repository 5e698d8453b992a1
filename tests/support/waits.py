"""A wait for a condition that another thread or process brings about."""

import threading
import time
from collections.abc import Callable

WAIT_SECONDS = 20.0  # only a failing test waits so long


def wait_until(ready: Callable[[], object]) -> None:
    """Wait until ``ready`` returns something true; fail after 20 seconds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not ready():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)
