"""Reading again after errors of a remote store that pass, such as a reset connection or a server that is busy."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dsinga.redaction import redact

T = TypeVar("T")

DELAYS = (0.2, 0.5, 1.0, 2.0, 4.0)  # seconds before each further try, 7.7 in all
LONGEST = 10.0  # seconds after which nothing is tried again, since the errors were time-outs
_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_ERRNOS = {errno.EIO, errno.EBUSY, errno.EAGAIN, errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT}
# Classes of aiohttp, which is not installed everywhere, and the ones among their subclasses that do not pass.
_PASSING = {"ClientConnectionError", "ClientPayloadError"}
_LASTING = {"ClientConnectorDNSError", "ClientConnectorCertificateError", "ClientSSLError", "InvalidURL"}

logger = logging.getLogger(__name__)


def is_transient(error: BaseException) -> bool:
    """Return whether the error of a remote file system may be gone in a moment; not "not found" or "forbidden"."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status in _STATUSES
    names = {each.__name__ for each in type(error).__mro__}
    if names & _LASTING:
        return False
    if names & _PASSING or isinstance(error, (ConnectionError, TimeoutError)):
        return True
    return isinstance(error, OSError) and error.errno in _ERRNOS


async def retry_async(call: Callable[[], Awaitable[T]], name: str) -> T:
    """Await ``call()`` and return its result, again after a transient error; ``name`` says in the log what is read."""
    began = time.monotonic()
    for delay in DELAYS:
        try:
            return await call()
        except Exception as error:
            _note(error, name, delay, began)
        await asyncio.sleep(delay)
    return await call()


def retry(call: Callable[[], T], name: str) -> T:
    """Return ``call()``, again after a transient error; ``name`` says in the log what is read."""
    began = time.monotonic()
    for delay in DELAYS:
        try:
            return call()
        except Exception as error:
            _note(error, name, delay, began)
        time.sleep(delay)
    return call()


def _note(error: Exception, name: str, delay: float, began: float) -> None:
    """Write a line to the log about an error that is tried again; raise it if it does not pass, or took too long."""
    if not is_transient(error) or time.monotonic() - began > LONGEST:
        raise error
    logger.info(redact(f"{name}: {type(error).__name__}: {error}; trying again in {delay} s", name))
