"""Secrets in the URL of a job's store: in nothing that those who watch a cluster can see, nor in a run's files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from distributed import Client, LocalCluster, Scheduler

import dsinga
from dsinga.dashboard import pages
from dsinga.dashboard.history import RunHistory
from dsinga.job import loads
from tests.support.small_job import JOB, with_topology
from tests.support.web_server import serve

SECRET = "it-is-secret"
PATH = "neuralnet.layer[data,kTrain].store_conf.path"


@pytest.fixture
def url(stores: Path) -> Iterator[str]:
    """The URL of a web server, with a password, that has the stores of the small job."""
    with serve(stores) as address:
        yield f"http://me:{SECRET}@{address}"


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def read_sources(dask_scheduler: Scheduler) -> str:
    """Return the data of the page of all panels, and of the events, on the scheduler."""
    document = Document()
    pages.all_page(dask_scheduler.plugins[RunHistory.name], dask_scheduler, {}, document)
    sources = [dict(model.data) for model in document.select({"type": ColumnDataSource})]
    return repr(sources) + repr(dask_scheduler.get_events())


def test_no_secret_of_a_store_is_shown_or_kept(client: Client, url: str, stores: Path, tmp_path: Path) -> None:
    job = with_topology(loads(JOB, str(stores / "small.conf")), 1).replace(train_steps=4, disp_freq=2)
    stopping = {PATH: f"{url}/train.zarr", "updater.learning_rate.base_lr": 1e30}
    settings = [{PATH: f"{url}/train.zarr", "seed": 1}, {PATH: f"{url}/missing.zarr"}, stopping]
    result = dsinga.search(job, settings, client, workspace=tmp_path, progress=False)
    assert [row["state"] for row in result] == ["finished", "failed", "failed"]
    port = client.cluster.scheduler.http_server.port
    paths = ("dsinga", "individual-dsinga-loss", "individual-plots.json", "metrics", "info/main/workers.html")
    texts = {path: urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20).read().decode() for path in paths}
    files = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"metrics.jsonl", "search.csv", "setting.json"} <= {Path(name).name for name in files}
    texts |= {name: content.decode("latin-1") for name, content in files.items()}
    texts |= {"pages": client.run_on_scheduler(read_sources), "table": repr(result) + result._repr_html_()}
    assert "http://***@127.0.0.1" in texts["table"]
    assert 'job="small"' in texts["metrics"]
    assert [name for name, text in texts.items() if SECRET in text] == []
