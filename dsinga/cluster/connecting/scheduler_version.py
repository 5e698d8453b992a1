"""Asks a Dask scheduler for its version, before a client of this version uses it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import distributed
from distributed.core import rpc
from distributed.security import Security

from dsinga.cluster.preflight.worker_lacks import OLDEST_DASK, release
from dsinga.errors import UserError


def check_version(address: str, security: Security, seconds: float) -> None:
    """Raise UserError unless the scheduler at ``address`` has a version of Dask that dsinga runs with.

    Dask's own client warns of another version. With a scheduler that is some years old it fails with an error of
    its methods, and then waits for half a minute. Raises OSError where the scheduler does not answer in ``seconds``.
    """

    async def ask() -> str | None:
        arguments = security.get_connection_args("client")
        async with rpc(address, timeout=seconds, connection_args=arguments) as scheduler:
            answer = await asyncio.wait_for(scheduler.versions(), seconds)
        return answer["packages"]["distributed"]

    with ThreadPoolExecutor(1) as thread:  # the caller's may have an event loop, as in a notebook
        try:
            version = thread.submit(asyncio.run, ask()).result()
        except OSError:
            raise
        except Exception as error:
            what = f"does not understand this version of Dask, {distributed.__version__} ({error!r})"
            raise UserError(f"the Dask scheduler {address} {what}; {_remedy()}") from error
    if version and release(version) < release(OLDEST_DASK):
        what = f"has distributed {version}, and dsinga needs {OLDEST_DASK} or newer"
        raise UserError(f"the Dask scheduler {address} {what}; {_remedy()}")


def _remedy() -> str:
    return f"give the scheduler and its workers the version that is here, {distributed.__version__}"
