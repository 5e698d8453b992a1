"""Certificates of a test's own authority, and Dask schedulers that use them."""

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from distributed import Scheduler, Security
from distributed.utils import LoopRunner, sync

ROLES = ("client", "scheduler", "worker")


def write_certificates(folder: Path) -> Path:
    """Write ca.pem, cert.pem, key.pem, and expired-cert.pem, expired-key.pem of one authority; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    year = datetime.datetime(2019, 1, 1), datetime.datetime(2020, 1, 1)
    certificates = {
        "": authority.issue_cert("localhost", "127.0.0.1"),
        "expired-": authority.issue_cert("localhost", not_before=year[0], not_after=year[1]),
    }
    for prefix, certificate in certificates.items():
        certificate.private_key_pem.write_to_path(folder / f"{prefix}key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / f"{prefix}cert.pem")
    return folder


def security(folder: Path, cert: str = "cert.pem", key: str | None = "key.pem", ca: str = "ca.pem") -> Security:
    """Return the credentials in ``folder`` for all roles."""
    names = {"cert": cert, "key": key}
    files = {f"tls_{role}_{kind}": name and str(folder / name) for role in ROLES for kind, name in names.items()}
    return Security(require_encryption=True, tls_ca_file=str(folder / ca), **files)


@contextlib.contextmanager
def running_scheduler(address: str, credentials: Security | None = None) -> Iterator[Scheduler]:
    """Run a Dask scheduler in a thread of this process."""
    runner = LoopRunner(asynchronous=False)
    runner.start()

    async def start() -> Scheduler:
        return await Scheduler(host=address, port=0, dashboard_address=":0", dashboard=False, security=credentials)

    async def stop(scheduler: Any) -> None:
        await scheduler.close()

    scheduler = sync(runner.loop, start, callback_timeout=30)
    try:
        yield scheduler
    finally:
        sync(runner.loop, stop, scheduler, callback_timeout=30)
        runner.stop()
