"""Connected sockets, with and without TLS."""

import functools
import socket
from concurrent.futures import ThreadPoolExecutor

from distributed import Security


@functools.cache
def certificates() -> Security:
    """Return the credentials of an authority that only this process knows."""
    return Security.temporary()


def socket_pair(tls: bool = False, tcp: bool = False) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets, with ``tcp`` through the network stack of this host."""
    ends = _tcp_pair() if tcp else socket.socketpair()
    if not tls:
        return ends
    here = certificates().get_connection_args("worker")["ssl_context"]
    there = certificates().get_listen_args("worker")["ssl_context"]
    with ThreadPoolExecutor(2) as pool:  # each end waits for the other's part of the handshake
        client = pool.submit(here.wrap_socket, ends[0])
        server = pool.submit(there.wrap_socket, ends[1], server_side=True)
        return client.result(60), server.result(60)


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]
