"""The pages on the dashboard of a real scheduler: added by the first run, listed, and with the figures of the runs."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from distributed import Client, LocalCluster, Scheduler

import dsinga
from dsinga.cluster.dashboard import NO_DASHBOARD, install, pages
from dsinga.cluster.dashboard.history import RunHistory
from dsinga.cluster.dashboard.pages import PANELS
from dsinga.job import loads
from tests.support.polling import wait_until
from tests.support.small_job import JOB, with_topology

PATHS = {f"/individual-dsinga-{name}" for name in PANELS}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a cluster with a dashboard, which knows nothing of dsinga."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def results(client: Client, stores: Path) -> dict[str, Any]:
    """Two runs on the cluster, a synchronous and an asynchronous one."""
    job = loads(JOB, str(stores / "small.conf")).replace(train_steps=20, disp_freq=5, test_freq=10, test_steps=1)
    one, several = with_topology(job, 2), with_topology(job, 1)
    jobs = {"one": one, "several": several.replace(cluster=several.cluster.replace(nworker_groups=2))}
    return {name: dsinga.train(job.replace(name=name), client, progress=False) for name, job in jobs.items()}


def get(client: Client, path: str) -> str:
    port = client.cluster.scheduler.http_server.port
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return str(response.read().decode())


def history_of(client: Client) -> RunHistory:
    return client.cluster.scheduler.plugins[RunHistory.name]


def test_the_first_run_adds_the_pages(client: Client, results: dict[str, Any]) -> None:
    listed = json.loads(get(client, "/individual-plots.json"))
    assert PATHS | {"/individual-task-stream"} <= {*listed.values()}
    assert "<title>dsinga: Loss</title>" in get(client, "/individual-dsinga-loss")
    page = get(client, "/dsinga")
    assert page.count('href="dsinga"') == page.count('href="individual-dsinga-loss"') == 1
    assert get(client, "/status").count('href="dsinga"') == 1


def test_the_panels_have_the_figures_of_the_runs(client: Client, results: dict[str, Any]) -> None:
    history = history_of(client)
    assert [(record.job, record.state, record.step) for record in history.runs.values()] == [
        ("one", "done", 20),
        ("several", "done", 20),
    ]
    for record in history.runs.values():
        rows = results[record.job].history
        for phase in ("train", "test"):
            for metric in ("loss", "accuracy"):
                expected = [(row["step"], row[metric]) for row in rows.phase(phase)]
                assert list(record.metrics[phase, metric]) == expected
        assert record.totals["steps"] == (20 if record.job == "one" else 40)
        assert record.speed.last
        assert len(record.addresses) == len(record.seconds) == 2


def sources_of(client: Client, fill: str, choose: Sequence[int] = ()) -> dict[str, dict[str, Any]]:
    """Return the data sources of the document of a page by name, when the user has chosen rows of the table."""

    def read(dask_scheduler: Scheduler) -> dict[str, dict[str, Any]]:
        history, document = dask_scheduler.plugins[RunHistory.name], Document()
        if fill == "all":
            pages.all_page(history, dask_scheduler, {}, document)
        else:
            pages.panel_page(fill, history, dask_scheduler, {}, document)
        sources = {model.name: model for model in document.select({"type": ColumnDataSource})}
        for rows in [list(choose), []] if choose else []:
            sources["Runs"].selected.indices = rows
            if rows:
                chosen = {name: dict(source.data) for name, source in sources.items()}
        return chosen if choose else {name: dict(source.data) for name, source in sources.items()}

    # On the scheduler's event loop, as in life: Dask's own pages there switch Bokeh's checks off for a while.
    return dict(client.run_on_scheduler(read))


@pytest.mark.parametrize("page", ["loss", "all"])
def test_a_page_has_the_curves(client: Client, results: dict[str, Any], page: str) -> None:
    sources = sources_of(client, page)
    assert [list(sources[f"Loss {slot}"]["ys"][0]) for slot in (0, 1)] == [
        list(results[name].history.phase("train")[:, "loss"]) for name in ("one", "several")
    ]
    assert page == "loss" or sources["Runs"]["job"] == ["several", "one"]


def test_rows_that_are_chosen_in_the_table_are_the_runs_of_all_panels(client: Client, results: dict[str, Any]) -> None:
    sources = sources_of(client, "all", choose=[0])
    assert [len(sources[f"Loss {slot}"]["xs"]) for slot in (0, 1)] == [0, 2]


def test_prometheus_reads_the_figures(client: Client, results: dict[str, Any]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(get(client, "/metrics"))
        for sample in family.samples
        if sample.name.startswith("dsinga")
    }
    run = next(record.run for record in history_of(client).runs.values() if record.job == "one")

    def value(name: str, *labels: str) -> float:
        return samples[name, *sorted([run, "one", *labels])]

    last = results["one"].history.phase("train")[-1]
    assert value("dsinga_metric", "train", "loss") == last["loss"]
    assert value("dsinga_metric", "test", "accuracy") > 0
    assert value("dsinga_steps_total") == value("dsinga_step") == value("dsinga_train_steps") == 20
    seconds = [value("dsinga_worker_seconds_total", kind) for kind in ("compute", "exchange", "data")]
    assert min(seconds) >= 0 < max(seconds)
    assert value("dsinga_moved_bytes_total", "within") > 0
    assert samples["dsinga_runs", "waiting"] == samples["dsinga_runs", "running"] == 0


def test_runs_that_ended_long_ago_have_no_metrics(client: Client, results: dict[str, Any], monkeypatch: Any) -> None:
    assert 'job="one"' in get(client, "/metrics")
    monkeypatch.setattr("dsinga.cluster.dashboard.prometheus.KEEP_SECONDS", 0)
    assert 'job="one"' not in get(client, "/metrics")


def test_the_table_shows_a_run_that_waits(client: Client, results: dict[str, Any], stores: Path) -> None:
    job = with_topology(loads(JOB, str(stores / "small.conf")), 2).replace(train_steps=1_000_000)
    with contextlib.ExitStack() as stack:
        for name in ("long", "next"):
            run = dsinga.submit(job.replace(name=name), client)
            stack.callback(run.cancel)
            wait_until(lambda name=name: state_of(client, name))
        assert (state_of(client, "long"), state_of(client, "next")) == ("running", "waiting")
        (line,) = [
            line for line in get(client, "/metrics").splitlines() if line.startswith('dsinga_runs{state="waiting"}')
        ]
        assert line.endswith(" 1.0")
    wait_until(lambda: state_of(client, "long") == "cancelled" and state_of(client, "next") == "")


def state_of(client: Client, job: str) -> str:
    """Return the state of the last run of a job in the table, "" for none; "starting" counts as none."""
    sources = sources_of(client, "queue")["Runs"]
    states = dict(zip(sources["job"][::-1], sources["state"][::-1], strict=True))
    return str(states.get(job, "")).replace("starting", "")


def test_installing_twice_changes_nothing(client: Client, results: dict[str, Any]) -> None:
    scheduler = client.cluster.scheduler
    before = list(scheduler.http_application.applications)
    assert install(scheduler) is history_of(client)
    assert scheduler.http_application.applications == before


@pytest.mark.parametrize("dashboard", [True, False])
def test_a_preload_adds_the_pages_when_the_scheduler_starts(dashboard: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        options = {
            "dashboard": dashboard,
            "dashboard_address": "127.0.0.1:0",
            "port": 0,
            "preload": ["dsinga.cluster.dashboard"],
        }
        async with Scheduler(protocol="tcp", host="127.0.0.1", **options) as scheduler:
            assert RunHistory.name in scheduler.plugins
            paths = [path for app in scheduler.http_application.applications[:1] for path in app.app_paths]
            assert (PATHS | {"/dsinga"} <= {*paths}) is dashboard

    with caplog.at_level(logging.WARNING, "dsinga"):
        asyncio.run(start())
    # On a busy machine others warn meanwhile, such as asyncio, and threads of tests before this one.
    messages = [record.message for record in caplog.records if record.name == "dsinga.cluster.dashboard"]
    assert messages == ([] if dashboard else [NO_DASHBOARD])
