"""A cluster of processes that speak TLS only: training, its connections, and what its logs and files do not show."""

import base64
import contextlib
import io
import logging
import os
import socket
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.config
import psutil
import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from distributed import Client, Scheduler

from dsinga.api import evaluate, train
from dsinga.base.errors import UserError
from dsinga.cluster import connect
from dsinga.cluster.connecting.scheduler_probe import TLS_RECORDS, reply_to_tls
from dsinga.cluster.dashboard import pages
from dsinga.cluster.dashboard.history import RunHistory
from dsinga.commands.cli import main
from dsinga.job import Job, loads
from tests.support.small_job import JOB, assert_same, with_topology
from tests.support.tls import security, write_certificates
from tests.support.web_server import QuietHandler, serve

pytestmark = [pytest.mark.process, pytest.mark.ci]
SECRET = "it-is-a-secret"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client(forked: None, certificates: Path) -> Iterator[Client]:
    """A client of two worker processes with TLS, and a dashboard by https."""
    files = {"ca-file": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
    dashboard = {
        f"distributed.scheduler.dashboard.tls.{name}": str(certificates / file) for name, file in files.items()
    }
    with (
        dask.config.set(dashboard),
        connect(workers=2, separate_processes=True, dashboard=True, security=security(certificates)) as client,
    ):
        yield client


@pytest.fixture
def options(client: Client, certificates: Path) -> list[str]:
    """The options of a command that connect it to the cluster."""
    files = [
        f"--{name}={certificates / file}"
        for name, file in (("tls-ca-file", "ca.pem"), ("tls-cert", "cert.pem"), ("tls-key", "key.pem"))
    ]
    return [f"--scheduler={client.scheduler.address}", *files]


def replies(process: int) -> set[bytes]:
    """Return how the listening sockets of a process reply to TLS: by TLS, or as what web servers send."""
    connections = psutil.Process(process).net_connections("inet")
    found = set()
    for address in [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]:
        with socket.create_connection(tuple(address), timeout=60) as connection:
            connection.settimeout(60)
            reply = reply_to_tls(connection)
        found.add(b"TLS" if reply.startswith(TLS_RECORDS) else reply[:5])
    return found


def test_training_opens_no_port_without_tls(client: Client, job: Job, threads: Client) -> None:
    """But for the workers' dashboards; checked in the middle of a run."""
    found: set[bytes] = set()
    processes = client.run(os.getpid)

    def look(step: int, row: dict[str, Any]) -> None:
        found.update(*(replies(process) for process in processes.values()))

    job = with_topology(job, 2).replace(train_steps=20, disp_freq=10)
    result = train(job, client, progress=False, extensions=[look])
    assert all(address.startswith("tls://") for address in (client.scheduler.address, *processes))
    assert b"TLS" in found <= {b"TLS", b"HTTP/"}
    assert_same(result.params, train(job, threads, progress=False).params)


def test_commands_train_and_test(
    options: list[str], stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.conf").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    options.append(f"--data-root={stores}")
    run("train", "job.conf", "--workers=2", "--workspace=w", "--set=train_steps=10", "--grain=graph", *options)
    assert "accuracy" in run("test", "job.conf", "--checkpoint=w", *options)


def run(*words: str) -> str:
    """Run a command of dsinga in this process; return what it prints."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dsinga", *words])
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            with pytest.raises(SystemExit) as ended:
                main()
    assert not ended.value.code, output.getvalue()
    return output.getvalue()


def test_the_dashboard_answers_by_https(client: Client, certificates: Path) -> None:
    assert client.dashboard_link.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    with urllib.request.urlopen(client.dashboard_link, context=context, timeout=30) as page:
        assert page.status == 200


class _WithPassword(QuietHandler):
    """Serves a folder to whoever knows the password."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization")
        if given == f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}":
            super().do_GET()
        else:
            self.send_error(401)

    do_HEAD = do_GET


@pytest.fixture
def web(stores: Path) -> Iterator[str]:
    """The URL, with its password, of the folder of stores at a web server."""
    with serve(stores, _WithPassword) as address:
        yield f"http://me:{SECRET}@{address}"


def log_to(path: str) -> None:
    """Let Dask log to a file, as `dask worker` logs to its standard error."""
    logger = logging.getLogger("distributed")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.FileHandler(path))


def test_a_password_of_a_store_is_nowhere(
    client: Client, stores: Path, web: str, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    """Neither in files, logs, output, reprs nor pages of the dashboard; and a run resumes with it from the job."""
    for address in client.run(os.getpid):
        client.run(log_to, str(tmp_path / f"{address[-5:]}.log"), workers=[address])
    caplog.set_level(logging.INFO, "distributed")
    text = JOB.replace('path: "train.zarr"', f'path: "{web}/train.zarr"').replace('"test.zarr"', f'"{web}/test.zarr"')
    job = with_topology(loads(text, "small.conf"), 2).replace(checkpoint_freq=5, test_freq=5)
    local = with_topology(loads(JOB, "small.conf"), 2)
    train(job.replace(train_steps=5), client, workspace=tmp_path)
    result = train(job.replace(train_steps=10), client, workspace=tmp_path, resume=True)
    expected = train(local.replace(train_steps=10), client, data_root=str(stores), progress=False)
    assert_same(result.params, expected.params)
    evaluate(job, result.params, client=client)
    with pytest.raises(UserError) as refused:
        train(loads(text.replace(SECRET, "wrong-secret"), "small.conf"), client)
    client.submit(fail, job, pure=False).exception()
    print(refused.value, job, repr(job), job._repr_html_(), result, result._repr_html_())
    print(client.run_on_scheduler(read_pages))
    texts = {str(path): path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()}
    texts |= {"output": "".join(capfd.readouterr()), "log": caplog.text}
    assert "http://***@127.0.0.1" in texts["output"]
    assert any("Compute Failed" in text for name, text in texts.items() if name.endswith(".log"))
    assert not [name for name, text in texts.items() if SECRET in text or "wrong-secret" in text]


def read_pages(dask_scheduler: Scheduler) -> str:
    """Return the data of the dashboard's page of all panels, and of the events, on the scheduler."""
    document = Document()
    pages.all_page(dask_scheduler.plugins[RunHistory.name], dask_scheduler, {}, document)
    sources = [dict(model.data) for model in document.select({"type": ColumnDataSource})]
    return repr(sources) + repr(dask_scheduler.get_events())


def fail(job: Job) -> None:
    """Fail as a task: Dask logs its arguments."""
    raise UserError(f"a task with {job.net.layer[0].store_conf.path} fails")
