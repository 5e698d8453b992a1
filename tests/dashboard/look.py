"""Takes pictures of the pages of the dashboard in headless Chromium while several jobs train.

`python -m tests.dashboard.look OUT` needs selenium, chromium and chromedriver. It starts a LocalCluster, and a
scheduler by `dask scheduler --preload dsinga.dashboard`, each with two worker processes; on each it trains a
synchronous, an asynchronous and a partitioned job and one by graph grain, at once. It writes a picture of each panel
before, during and after the runs, of the page with all panels, and of Dask's task stream and progress bar, to
OUT/CLUSTER-WHEN-PANEL.png. Tests compare the figures of the panels with those of the runs (test_dashboard_pages.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import dsinga
from dsinga.dashboard.pages import PANELS
from dsinga.job import ClusterConf, Job

ROOT = Path(__file__).parents[2]
JOB = ROOT / "datasets" / "digits" / "job.conf"
PANEL_SIZE, PAGE_SIZE = (400, 300), (1400, 900)
SETTLE_SECONDS, DRAW_SECONDS = 1.0, 30
IS_DRAWN = "return window.Bokeh !== undefined && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle"
MODULE = "dsinga.dashboard"
DASK_PANELS = ("task-stream", "progress", "graph")
# Steps by the name of the job: so many that pictures can be taken meanwhile.
STEPS = {"sync": 2000, "async": 2000, "partitioned": 1000, "by graphs": 60}


def jobs() -> dict[str, tuple[Job, dict[str, Any]]]:
    """Return the jobs by name, with arguments of train."""
    job = dsinga.load(str(JOB), ["disp_freq=50", "test_freq=250"])
    asynchronous = job.replace(cluster=ClusterConf(nworker_groups=2))
    partitioned = dsinga.load(str(JOB), ["disp_freq=50", "test_freq=250", "neuralnet.layer[ip].partition_dim=1"])
    kinds = {
        "sync": (job, {"workers": 2}),
        "async": (asynchronous, {}),
        "partitioned": (partitioned, {"workers": 2}),
        "by graphs": (job.replace(test_freq=50), {"workers": 2, "grain": "graph"}),
    }
    return {
        name: (kind.replace(name=name, train_steps=STEPS[name]), arguments) for name, (kind, arguments) in kinds.items()
    }


@contextlib.contextmanager
def separate_scheduler(folder: Path) -> Iterator[str]:
    """Start a scheduler and two Dask workers of four threads as processes of their own; yield the address."""
    file = folder / "scheduler.json"
    commands = [
        ["scheduler", "--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(file), "--preload", MODULE],
        ["worker", "--scheduler-file", str(file), "--nworkers", "2", "--nthreads", "4"],
    ]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "dask.log").open("w"))
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command], cwd=folder, stdout=log, stderr=log,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline, (folder / "dask.log").read_text()
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"]


class Browser:
    """A headless Chromium that takes pictures of the pages of one dashboard."""

    def __init__(self, driver: Any, dashboard: str, out: Path, cluster: str):
        self._driver, self._dashboard, self._out, self._cluster = driver, dashboard, out, cluster

    def take(self, when: str, name: str, path: str, size: tuple[int, int]) -> None:
        """Open a page, wait until it is drawn, and write a picture."""
        # The window's frame takes some of its height.
        self._driver.set_window_size(size[0], size[1])
        inner = self._driver.execute_script("return [window.innerWidth, window.innerHeight]")
        self._driver.set_window_size(*(2 * wanted - got for wanted, got in zip(size, inner, strict=True)))
        self._open(path)
        self._driver.save_screenshot(str(self._out / f"{self._cluster}-{when}-{name}.png".replace(" ", "-")))
        for entry in self._driver.get_log("browser"):
            if entry["level"] == "SEVERE":
                print(f"{path}: {entry['message'][:300]}", flush=True)

    def _open(self, path: str) -> None:
        """Open a page and wait until it is drawn."""
        self._driver.get(f"{self._dashboard}{path}")
        deadline = time.monotonic() + DRAW_SECONDS
        while not self._driver.execute_script(IS_DRAWN) and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(SETTLE_SECONDS)  # until what has come meanwhile is drawn, too

    def take_all(self, when: str) -> None:
        """Write a picture of each page."""
        for name in PANELS:
            self.take(when, name, f"/individual-dsinga-{name}", PANEL_SIZE)
        self.take(when, "all", "/dsinga", PAGE_SIZE)


def look(client: Client, driver: Any, out: Path, cluster: str, folder: Path) -> None:
    """Train the jobs on a cluster, and take pictures."""
    dashboard = client.dashboard_link.removesuffix("/status")
    browser = Browser(driver, dashboard, out, cluster)
    workspaces = {name: folder / cluster / name for name in STEPS}

    def train(name: str) -> None:
        job, arguments = jobs()[name]
        with Client(client.scheduler.address, set_as_default=False) as own:
            dsinga.train(job, own, workspace=workspaces[name], progress=False, **arguments)

    if cluster == "separate":
        browser.take_all("before")
    threads = [threading.Thread(target=train, args=(name,)) for name in STEPS]
    for thread in threads:
        thread.start()
    time.sleep(4)
    for name in DASK_PANELS:
        browser.take("during", f"dask-{name}", f"/individual-{name}", (900, 400))
    browser.take_all("during")
    for thread in threads:
        thread.join(300)
    browser.take_all("after")


def main() -> None:
    from selenium import webdriver

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(word)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with tempfile.TemporaryDirectory() as temporary, webdriver.Chrome(options, service) as driver:
        folder = Path(temporary)
        with LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=":0") as cluster:
            with Client(cluster, set_as_default=False) as client:
                look(client, driver, out, "local", folder)
        with separate_scheduler(folder) as address, Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, 60)
            look(client, driver, out, "separate", folder)


if __name__ == "__main__":
    main()
