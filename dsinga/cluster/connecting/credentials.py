"""The TLS credentials for connections to a Dask scheduler, checked before they are used."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import dask.config
from distributed.security import Security
from distributed.utils import import_term

from dsinga.base.advice import option
from dsinga.base.errors import UserError
from dsinga.base.regular_files import METADATA_BYTES, read_regular


def read_credentials(ca_file: str | None, cert: str | None, key: str | None) -> Security:
    """Return TLS credentials from PEM files (at least one); Dask's settings name the others.

    Args:
        ca_file: certificates of the scheduler's and the workers' authorities.
        cert: the client's certificate.
        key: the certificate's private key, if the file ``cert`` does not contain it.
    """
    files = {"tls_ca_file": ca_file, "tls_client_cert": cert, "tls_client_key": key}
    given = {field: path for field, path in files.items() if path is not None}
    return Security(require_encryption=True, **given)


def find_credentials(address: str, security: Security | None) -> Security:
    """Return ``security``, or for None the credentials in Dask's settings for a scheduler's address."""
    loader = None if security is not None else dask.config.get("distributed.client.security-loader", None)
    if loader:
        security = import_term(loader)({"address": address})
    return _checked(security)


def embedded_credentials(security: Security | bool | None) -> Security:
    """Return the TLS credentials for an embedded cluster's processes; True makes temporary ones."""
    if security is True:
        try:
            return Security.temporary()
        except ImportError as error:
            raise UserError(f"security=True needs cryptography: pip install 'dsinga[tls]' ({error})") from error
    credentials = Security(require_encryption=False) if security is False else _checked(security)
    if credentials.require_encryption:
        for role in ("scheduler", "worker", "client"):
            tls_context(credentials, role, "a cluster of processes that must be encrypted")
    return credentials


@contextlib.contextmanager
def explained_start() -> Iterator[None]:
    """Replace Dask's error by a UserError if starting processes refuse each other's certificates."""
    try:
        yield
    except RuntimeError as error:
        if "TLS certificate" not in str(error):
            raise
        raise UserError(
            "the processes of the embedded cluster refuse each other's TLS certificates; give ones that have "
            "not expired, with the CA file of their authority, or none, as they connect within this machine only"
        ) from error


def _checked(security: Security | None) -> Security:
    if security is not None and not isinstance(security, Security):
        raise UserError(f"security= takes a distributed.Security, not a {type(security).__name__}")
    try:
        return security or Security()
    except (TypeError, ValueError) as error:
        raise UserError(f"Dask's settings distributed.comm cannot be used: {error}") from error


def tls_context(security: Security, role: str, user: str) -> ssl.SSLContext:
    """Return the TLS context of a "client", "scheduler" or "worker" that connects to others.

    Raises UserError if credentials are missing or unreadable, or if the key does not match the certificate.
    """
    tls: dict[str, Any] = security.get_tls_config_for_role(role)
    ca_file, cert, key = tls["ca_file"], tls["cert"], tls["key"]
    if not (ca_file and cert):
        missing = " and no ".join(
            name for name, file in (("CA file", ca_file), (f"{role} certificate", cert)) if not file
        )
        raise UserError(f"{user} needs TLS, and there is no {missing}; {how_to_give(role)}")
    _check_files(ca_file, cert, key)
    try:
        return security.get_connection_args(role)["ssl_context"]
    except ssl.SSLError as error:
        raise UserError(f"the TLS ciphers {tls['ciphers']!r} cannot be used: {error}") from error


def how_to_give(role: str = "client") -> str:
    """Return advice for messages: how to give credentials."""
    names = f"tls_ca_file=..., tls_{role}_cert=..., tls_{role}_key=..."
    options = option(
        "tls_ca_file", "FILE --tls-cert FILE --tls-key FILE", python=f"security=distributed.Security({names})"
    )
    return f"give {options}, or Dask's settings distributed.comm.tls.ca-file, .{role}.cert and .{role}.key"


def _check_files(ca_file: str, cert: str, key: str | None) -> None:
    """Raise UserError, naming the file, unless the PEM files or texts are readable and the key matches."""
    for what, file in (("CA file", ca_file), ("certificate", cert), ("key", key)):
        text = _read(what, file) if file else ""
        if file and "-----BEGIN " not in text:
            raise UserError(f"the TLS {what} {file} is not a PEM file; see `openssl x509` and `openssl pkey`")
        if file and "ENCRYPTED" in text:
            raise UserError(
                f"the TLS {what} {_shown(file)} is protected by a passphrase, which Dask cannot take; write it without "
                "one with `openssl pkey`, readable for you only"
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(**{"cadata" if "\n" in ca_file else "cafile": ca_file})
    except ssl.SSLError as error:
        raise UserError(f"the TLS CA file {_shown(ca_file)} has no certificate that can be read") from error
    if "\n" in cert or (key and "\n" in key):
        return  # made in memory by Dask
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UserError(
                f"the TLS key {key or cert} is not the key of the certificate {cert}; give the key that the "
                "certificate was made with"
            ) from error
        where = f"{cert}, or the key {key}," if key else f"{cert}, which without a key file must contain the key,"
        raise UserError(f"the TLS certificate {where} cannot be read; write it anew, as PEM") from error


def _read(what: str, file: str) -> str:
    """Return the text of a PEM file, or ``file`` itself if it is such a text."""
    if "\n" in file:
        return file
    try:
        return read_regular(file, METADATA_BYTES).decode("latin-1")
    except OSError as error:
        raise UserError(f"the TLS {what} {file} cannot be read: {error.strerror}; check its path and mode") from error


def _shown(file: str) -> str:
    return "in memory" if "\n" in file else file
