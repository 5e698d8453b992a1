"""Connecting where the credentials of TLS do not fit: one message each, at once, and no wait without end."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import dask.config
import pytest
from distributed import Security

from dsinga.base.errors import ClusterNotReady, UserError
from dsinga.cluster import connect
from dsinga.cluster.connecting import embedded, scheduler_probe
from tests.support.tls import running_scheduler, security, write_certificates


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the cluster's authority, in ``other/`` those of another one, and files that are none."""
    folder = write_certificates(tmp_path_factory.mktemp("certificates"))
    write_certificates(folder / "other")
    for name, kind in (("encrypted", "ENCRYPTED PRIVATE KEY"), ("damaged", "CERTIFICATE")):
        (folder / f"{name}.pem").write_text(f"-----BEGIN {kind}-----\nabc\n-----END {kind}-----\n")
    (folder / "junk.pem").write_text("junk")
    return folder


@pytest.fixture(scope="module")
def schedulers(folder: Path) -> Iterator[dict[str, str]]:
    """Addresses without their scheme: with TLS, with an expired certificate, without TLS, and of its dashboard."""
    expired = security(folder, "expired-cert.pem", "expired-key.pem")
    with (
        running_scheduler("tls://127.0.0.1", security(folder)) as tls,
        running_scheduler("tls://127.0.0.1", expired) as outdated,
        running_scheduler("tcp://127.0.0.1") as plain,
    ):
        running = {"tls": tls, "expired": outdated, "plain": plain}
        addresses = {name: scheduler.address.partition("://")[2] for name, scheduler in running.items()}
        yield {**addresses, "web": f"127.0.0.1:{plain.http_server.port}"}


def refusal(address: str, credentials: Security | None, kind: type[Exception] = UserError) -> str:
    """Return the message with which a connection is refused."""
    with pytest.raises(kind) as refused, connect(scheduler=address, security=credentials, patience=0.1):
        pass
    return str(refused.value)


def test_credentials_that_do_not_fit_are_named(folder: Path, schedulers: dict[str, str]) -> None:
    address = f"tls://{schedulers['tls']}"
    mine, other_ciphers = security(folder, "other/cert.pem", "other/key.pem"), security(folder)
    other_ciphers.tls_ciphers = "NONE"
    faults = {
        "needs TLS, and there is no CA file and no client certificate; give security=": None,
        f"is not from an authority in the CA file {folder}/other/ca.pem": security(folder / "other"),
        f"refuses the client's certificate {folder}/other/cert.pem, which is not from an authority": mine,
        f"refuses the client's certificate {folder}/expired-cert.pem, which has expired": security(
            folder, "expired-cert.pem", "expired-key.pem"
        ),
        f"the TLS key {folder}/expired-key.pem is not the key of the certificate {folder}/cert.pem": security(
            folder, key="expired-key.pem"
        ),
        f"the TLS certificate {folder}/nowhere.pem cannot be read: No such file": security(folder, "nowhere.pem"),
        f"the TLS CA file {folder}/nowhere.pem cannot be read: No such file": security(folder, ca="nowhere.pem"),
        f"the TLS key {folder}/encrypted.pem is protected by a passphrase": security(folder, key="encrypted.pem"),
        f"the TLS certificate {folder}/junk.pem is not a PEM file": security(folder, "junk.pem"),
        f"the TLS CA file {folder}/damaged.pem has no certificate": security(folder, ca="damaged.pem"),
        f"{folder}/cert.pem, which without a key file must contain the key": security(folder, key=None),
        "the TLS ciphers 'NONE' cannot be used": other_ciphers,
    }
    for message, credentials in faults.items():
        assert message in refusal(address, credentials)


def test_an_expired_certificate_of_the_scheduler_is_named(folder: Path, schedulers: dict[str, str]) -> None:
    address = f"tls://{schedulers['expired']}"
    assert f"the certificate of the Dask scheduler {address} has expired" in refusal(address, security(folder))


def test_the_other_protocol_is_named(folder: Path, schedulers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_probe, "HELLO_SECONDS", 0.3)
    tls, plain, web = (schedulers[name] for name in ("tls", "plain", "web"))
    mine, tls_fault = security(folder), f"speaks TLS; give tls://{tls}, and give security="
    assert tls_fault in refusal(f"tcp://{tls}", None)
    assert tls_fault in refusal(tls, None)
    assert "does not speak TLS; give tcp:// if" in refusal(f"tls://{plain}", mine)
    assert "does not speak TLS; give tcp:// if" in refusal(plain, mine)  # credentials ask for encryption
    assert f"forbids; give tls://{plain}" in refusal(f"tcp://{plain}", mine)
    assert "a web server answers" in refusal(web, None)
    assert "a web server answers" in refusal(f"tls://{web}", mine)


def test_a_scheduler_of_another_version_is_refused() -> None:
    """Its methods are others, so that Dask's own client fails in one of these."""
    with running_scheduler("tcp://127.0.0.1") as scheduler:
        scheduler.handlers["versions"] = lambda: {"packages": {"distributed": "2022.12.1"}}
        assert "has distributed 2022.12.1, and dsinga needs 20" in refusal(scheduler.address, None)
        scheduler.handlers["versions"] = lambda answer: answer
        assert "does not understand this version of Dask" in refusal(scheduler.address, None)


def test_a_listener_that_says_nothing_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's own client would wait without end for the first message."""
    monkeypatch.setattr(embedded, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(scheduler_probe, "HELLO_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert "does not answer as a Dask scheduler" in refusal(f"tcp://{address}", None, ClusterNotReady)
        assert "does not answer as" in refusal(f"tls://{address}", security(folder), ClusterNotReady)


def test_credentials_come_from_the_argument_a_file_of_the_scheduler_or_dasks_settings(
    folder: Path, schedulers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"tls://{schedulers['tls']}"
    scheduler_file = tmp_path / "scheduler.json"
    scheduler_file.write_text(json.dumps({"address": address}))
    settings = {
        "distributed.comm.tls.ca-file": str(folder / "ca.pem"),
        "distributed.comm.tls.client.cert": str(folder / "cert.pem"),
        "distributed.comm.tls.client.key": str(folder / "key.pem"),
    }
    for place in ({"scheduler": address}, {"scheduler": schedulers["tls"]}, {"scheduler_file": str(scheduler_file)}):
        with connect(security=security(folder), **place) as client:
            assert client.scheduler.address == address
    with dask.config.set(settings), connect(scheduler=address) as client:
        assert client.scheduler.address == address


def test_mistakes_are_named_with_their_remedies(tmp_path: Path, folder: Path, schedulers: dict[str, str]) -> None:
    path = tmp_path / "scheduler.json"
    for text in ("x", "[]", '{"id": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match="is not a file that `dask scheduler"), connect(scheduler_file=str(path)):
            pass
    with pytest.raises(UserError, match="TLS is for a running scheduler"), connect(security=security(folder)):
        pass
    with pytest.raises(UserError, match="security= takes a distributed.Security, not a dict"):
        with connect(scheduler=schedulers["plain"], security={}):
            pass
    with pytest.raises(UserError, match="has its certificates"):
        with connect(scheduler=schedulers["plain"], security=True):
            pass


def test_an_embedded_cluster_refuses_credentials_that_its_processes_would_refuse(folder: Path) -> None:
    expired = security(folder, "expired-cert.pem", "expired-key.pem")
    with pytest.raises(UserError, match="refuse each other's"):
        with connect(workers=1, separate_processes=True, security=expired):
            pass
    with dask.config.set({"distributed.comm.require-encryption": True}):
        with pytest.raises(UserError, match="no CA file and no scheduler certificate"):
            with connect(workers=1, separate_processes=True):
                pass
        with connect(workers=1) as client:  # in threads of this process there is nothing to encrypt
            assert client.scheduler.address.startswith("inproc://")
