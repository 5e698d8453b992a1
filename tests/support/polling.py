"""Waits for what another thread or process does."""

import threading
import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until ``condition()`` is true; raise AssertionError where it is not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s"
        threading.Event().wait(0.005)
