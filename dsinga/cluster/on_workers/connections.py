"""Opens connections to services on other hosts, through their Dask workers' addresses and TLS, without another port.

A connection begins as a Dask connection. Then :mod:`dsinga.cluster.transport.stream` takes over its socket from the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from typing import Any

import dask.config
import dask.utils
from distributed import get_worker
from distributed.comm import Comm
from distributed.core import Status, connect

from dsinga.base.errors import WorkerLost
from dsinga.cluster.dask.dask_workers import process
from dsinga.cluster.transport.endpoints import OpenConnection, accept, find_service

OPERATION = "dsinga-connect"  # the name of the handler in Dask workers
ACCEPTED = b"+"  # the first byte that the service's end sends
PUMPED_BYTES = 1 << 20
# Seconds of attempts to connect after which a process that refuses connections counts as ended.
REFUSED_SECONDS = 1.0


def serve_connections() -> None:
    """Let this task's Dask worker accept connections to the services of its process."""
    get_worker().handlers[OPERATION] = _accept


def connection_to(address: str, name: str, node: Any = None) -> OpenConnection:
    """Return a function that opens a connection to the service ``name`` of the Dask worker ``address``.

    ``node`` is the Dask worker or client with the event loop and certificates, by default this task's Dask worker. Do
    not call the function in that event loop.
    """
    return functools.partial(_open, node or get_worker(), address, name)


def _open(node: Any, address: str, name: str) -> socket.socket:
    if process(address) == "inproc":  # it would have been found in this process
        raise WorkerLost(f"{name} is not on the Dask worker {address}: the run has ended there")
    timeout = dask.utils.parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"), "seconds")
    opening = asyncio.run_coroutine_threadsafe(_request(node, address, name, timeout), node.loop.asyncio_loop)
    try:
        connection = opening.result(timeout)
    except (OSError, TimeoutError) as error:
        raise WorkerLost(f"no connection to the Dask worker {address}: {error}") from error
    connection.settimeout(timeout)
    with contextlib.suppress(OSError):
        if connection.recv(1) == ACCEPTED:
            return connection
    connection.close()
    raise WorkerLost(f"{name} is not on the Dask worker {address}: the run has ended there")


async def _connect(node: Any, address: str, timeout: float) -> Comm:
    """Connect to a Dask worker; unlike Dask, fail early if its process has ended."""
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            return await connect(address, timeout=min(left, REFUSED_SECONDS), **node.connection_args)
        except OSError as error:
            if _is_refused(error) or left < REFUSED_SECONDS:
                raise


def _is_refused(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, ConnectionRefusedError) or _is_refused(error.__cause__))


async def _request(node: Any, address: str, name: str, timeout: float) -> socket.socket:
    comm = await _connect(node, address, timeout)
    await comm.write({"op": OPERATION, "reply": False, "service": name})
    connection, _ = await _take_socket(comm)
    return connection


async def _accept(comm: Comm, service: str) -> Status:
    """Give an incoming connection to a service of this process, as a handler of Dask workers."""
    connection, pumped = await _take_socket(comm)
    if find_service(service) is not None:
        connection.send(ACCEPTED)  # nothing has been sent before, so that the system takes it at once
    if not accept(service, connection):
        connection.close()
    if pumped is not None:
        await pumped  # Dask closes the connection when this function returns
    return Status.dont_reply


async def _take_socket(comm: Comm) -> tuple[socket.socket, asyncio.Task[None] | None]:
    """Return the socket of a connection with nothing to read, which Dask no longer uses."""
    stream = getattr(comm, "stream", None)
    if stream is None:
        ours, theirs = socket.socketpair()
        return theirs, asyncio.create_task(_pump(comm, ours))
    while stream.writing():
        await stream.write(b"")
    connection: socket.socket = stream.socket
    stream.io_loop.remove_handler(connection)
    stream.socket = socket.socket()  # closed with the stream, in place of the connection
    comm.abort()
    return connection, None


async def _pump(comm: Comm, connection: socket.socket) -> None:
    connection.setblocking(False)
    comm.deserialize = False  # nothing that arrives here is unpickled
    loop = asyncio.get_running_loop()

    async def send() -> None:
        while data := await loop.sock_recv(connection, PUMPED_BYTES):
            await comm.write(data)

    async def receive() -> None:
        while isinstance(data := await comm.read(), bytes):
            await loop.sock_sendall(connection, data)

    tasks = [asyncio.create_task(send()), asyncio.create_task(receive())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    connection.close()
    comm.abort()
