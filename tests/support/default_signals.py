"""Starts processes that get the signals which ``nohup``, and shells that start a command in the background, ignore."""

import contextlib
import signal
from collections.abc import Iterator

IGNORED = (signal.SIGHUP, signal.SIGQUIT)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Let processes that are started in the context have the default actions of these signals."""
    earlier = {number: signal.getsignal(number) for number in IGNORED}
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
