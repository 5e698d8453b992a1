"""Checks that a Dask scheduler answers, accepts its TLS, and has a suitable version, before a client connects.

Dask's own client waits for its timeout or longer, and its error does not name the faulty certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import distributed
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.core import rpc
from distributed.security import Security

from dsinga.base.errors import SchedulerLost, UserError
from dsinga.base.regular_files import read_json
from dsinga.cluster.connecting.credentials import find_credentials, how_to_give, tls_context
from dsinga.cluster.dask.waiting import Announcements, StillWaiting, wait_until
from dsinga.cluster.preflight.worker_lacks import OLDEST_DASK, release

# Seconds without a first message of the scheduler after which another protocol is tried.
HELLO_SECONDS = 1.5
RETRY_SECONDS = 0.1
# Seconds for one attempt to reach a scheduler that is to be started again.
ATTEMPT_SECONDS = 1.0
# Dask's first message, which a scheduler sends at once, begins with its length, 8 bytes, little-endian.
MOST_HELLO_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class NoScheduler(UserError):
    """No Dask scheduler answers at an address; one may start there soon."""


class SilentScheduler(NoScheduler):
    """Something listens at an address and sends nothing; it may be a busy scheduler."""


# The first bytes of the records of TLS with a handshake and with an alert.
TLS_RECORDS = (b"\x16\x03", b"\x15\x03")
# Words in OpenSSL's reasons where a peer has sent something else.
NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")

# What is wrong with the scheduler's certificate, by OpenSSL's number.
_UNKNOWN_ISSUER = "is not from an authority in the CA file{ca}; give the CA file of its cluster"
_CERT_FAULTS = {
    9: "is not valid yet; compare the clocks of the two machines",
    10: "has expired; let its owner renew it and restart the cluster",
    **dict.fromkeys((18, 19, 20, 21), _UNKNOWN_ISSUER),
}
# What a scheduler says of the client's certificate, by words in OpenSSL's reason.
_ALERTS = {
    "UNKNOWN_CA": "is not from an authority that the scheduler knows",
    "CERTIFICATE_EXPIRED": "has expired",
    "CERTIFICATE_REVOKED": "was revoked",
    "CERTIFICATE_REQUIRED": "is missing",
    "BAD_CERTIFICATE": "is refused",
    "CERTIFICATE_UNKNOWN": "is refused",
}


def await_scheduler(
    address: str | None, file: str | None, security: Security | None, seconds: float, check: Callable[[], None]
) -> None:
    """Wait until a scheduler answers at ``address``, or at the address in ``file``, read for each attempt.

    An error of ``check`` ends the wait. Raises SchedulerLost after ``seconds``.
    """

    def connect(_: float) -> StillWaiting | None:
        check()
        try:
            place = address or str(read_json(file or "")["address"])
            credentials = find_credentials(place, security)
            check_scheduler(with_scheme(place, credentials), credentials, ATTEMPT_SECONDS)
        except (
            UserError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # no file yet, or the lost scheduler's file
            failure = SchedulerLost(f"no scheduler has come back within {seconds:g} s: {error}")
            return StillWaiting(f"no scheduler has come back yet: {error}", failure)
        return None

    wait_until(connect, seconds, Announcements(_log.warning))


def with_scheme(address: str, security: Security) -> str:
    """Complete a scheduler's address by a scheme: tls:// if ``security`` requires encryption."""
    return f"tls://{address}" if "://" not in address and security.require_encryption else address


def check_scheduler(address: str, security: Security, seconds: float) -> None:
    """Raise UserError, after about ``seconds``, unless a Dask scheduler answers as ``address`` says."""
    scheme, location = parse_address(address)
    if scheme not in ("tcp", "tls"):
        return
    context = tls_context(security, "client", address) if scheme == "tls" else None
    if context is None and security.require_encryption:
        raise UserError(
            f"{address} is without encryption, which Dask's setting distributed.comm.require-encryption, or the "
            f"security that is given, forbids; give tls://{location}"
        )
    deadline = time.monotonic() + seconds
    answers = None
    for is_last in (False, True):
        connection = _connect(address, deadline)
        connection.settimeout(max(RETRY_SECONDS, deadline - time.monotonic()) if is_last else HELLO_SECONDS)
        with connection:
            if context is None:
                answers = _sends_hello(connection)
            else:
                answers = _sends_hello_by_tls(connection, context, address, security.get_tls_config_for_role("client"))
        if answers:
            return
        if answers is None:
            _refuse_other_protocol(address, scheme)
    fault = f"what listens at {address} does not answer as a Dask scheduler; check the address"
    raise SilentScheduler(fault) if answers is None else UserError(fault)


def _connect(address: str, deadline: float) -> socket.socket:
    place = parse_host_port(parse_address(address)[1])
    while True:
        try:
            return socket.create_connection(place, timeout=max(RETRY_SECONDS, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise NoScheduler(
                    f"no Dask scheduler answers at {address}: {error}; check the address, or start one with "
                    "`dask scheduler`"
                ) from error
            time.sleep(RETRY_SECONDS)


def _sends_hello(connection: socket.socket) -> bool | None:
    """Whether a peer's first bytes are Dask's; None if it sends nothing in time."""
    try:
        first = connection.recv(8)
    except TimeoutError:
        return None
    return len(first) == 8 and int.from_bytes(first, "little") <= MOST_HELLO_BYTES


def reply_to_tls(connection: socket.socket) -> bytes:
    """Send a server TLS's first message; return the first bytes of its reply, b"" without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    try:
        connection.sendall(sent.read() + b"\r\n\r\n")  # a web server waits for the end of its request
        return connection.recv(8)
    except OSError:
        return b""


def _sends_hello_by_tls(
    connection: socket.socket, context: ssl.SSLContext, address: str, tls: Mapping[str, str]
) -> bool | None:
    """Whether a TLS peer says hello as a scheduler does; raise UserError if TLS fails."""
    try:
        with context.wrap_socket(connection) as secured:
            return _sends_hello(secured)  # with TLS 1.3, a refusal comes in place of the first message
    except TimeoutError:
        return None
    except ssl.SSLCertVerificationError as error:
        fault = _CERT_FAULTS.get(error.verify_code, f"is refused ({error.verify_message})")
        raise UserError(
            f"the certificate of the Dask scheduler {address} {fault.format(ca=_named(tls['ca_file']))}"
        ) from error
    except ssl.SSLError as error:
        raise _refusal(error.reason or str(error), address, tls) from error
    except OSError as error:  # the scheduler has closed the connection
        raise UserError(f"TLS with the Dask scheduler {address} fails: {error}; its log may say why") from error


def _refuse_other_protocol(address: str, scheme: str) -> None:
    """Raise UserError if a silent peer speaks HTTP, or TLS although ``address`` says otherwise."""
    with _connect(address, time.monotonic() + HELLO_SECONDS) as connection:
        connection.settimeout(HELLO_SECONDS)
        reply = reply_to_tls(connection)
    if reply.startswith(TLS_RECORDS) and scheme != "tls":
        location = parse_address(address)[1]
        raise UserError(f"the Dask scheduler at {address} speaks TLS; give tls://{location}, and {how_to_give()}")
    if reply.startswith(b"HTTP/"):
        raise UserError(
            f"a web server answers at {address}, perhaps the dashboard; give the address of the scheduler itself, "
            "whose port is 8786 by default"
        )


def _refusal(reason: str, address: str, tls: Mapping[str, str]) -> UserError:
    for alert, fault in _ALERTS.items():
        if alert in reason:
            cert = _named(tls["cert"])
            return UserError(
                f"the Dask scheduler {address} refuses the client's certificate{cert}, which {fault}; let an authority "
                "of the scheduler's CA file issue one"
            )
    if any(word in reason for word in NOT_TLS):
        return UserError(
            f"what listens at {address} does not speak TLS; give tcp:// if the network may be trusted, or start the "
            "scheduler with --tls-ca-file, --tls-cert and --tls-key"
        )
    return UserError(f"TLS with the Dask scheduler {address} fails: {reason}; its log may say more")


def _named(file: str) -> str:
    return "" if "\n" in file else f" {file}"


def check_version(address: str, security: Security, seconds: float) -> None:
    """Raise UserError unless the scheduler at ``address`` has a version of Dask that dsinga supports."""

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
