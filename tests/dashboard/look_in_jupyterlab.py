"""Looks at the panels of a run in JupyterLab's Dask extension, with headless Chromium.

`python -m tests.dashboard.look_in_jupyterlab OUT` needs jupyterlab, dask-labextension, selenium, chromium and
chromedriver. It trains a job on a LocalCluster, gives the address of the dashboard to the extension, opens the panels
of dsinga that it offers, and writes OUT/jupyterlab.png. It ends with status 1 if the extension offers others than all.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import dsinga
from dsinga.dashboard.pages import PANELS
from dsinga.job import ClusterConf
from tests.dashboard.look import JOB
from tests.notebooks.run_in_jupyterlab import lab_server, wait_for

START_SECONDS = 60
WINDOW = "1200,800"
SHOWN = ("Dsinga Loss", "Dsinga Speed", "Dsinga Time", "Dsinga Queue")
SIDEBAR = "window.jupyterapp.shell.activateById('dask-dashboard-launcher')"
BUTTONS = "return [...document.querySelectorAll('.dask-DashboardListing-item button')].map(item => item.value)"
GIVE_ADDRESS = "window.jupyterapp.commands.execute('dask:populate-dashboard-url', { url: arguments[0] })"
CLICK = """
[...document.querySelectorAll('.dask-DashboardListing-item button')]
  .find(item => item.value == arguments[0]).click();
"""
# Puts the panels, the last of the open tabs, side by side: two above two.
TILE = """
const shell = window.jupyterapp.shell;
const [launcher, first, second, third, fourth] = [...shell.widgets('main')];
launcher.close();
shell.add(second, 'main', { mode: 'split-right', ref: first.id });
shell.add(third, 'main', { mode: 'split-bottom', ref: first.id });
shell.add(fourth, 'main', { mode: 'split-bottom', ref: second.id });
"""


def look(driver: Any, lab: str, dashboard: str, out: Path) -> list[str]:
    """Open the panels of dsinga in JupyterLab, and take a picture; return the names of those that it offers."""
    driver.get(f"{lab}/lab")
    wait_for(lambda: driver.execute_script("return !!window.jupyterapp"), START_SECONDS, "JupyterLab to start")
    wait_for(
        lambda: driver.execute_script(f"{SIDEBAR}; return !!document.querySelector('.dask-URLInput input')"),
        START_SECONDS,
        "the sidebar of the Dask extension",
    )
    driver.execute_script(GIVE_ADDRESS, dashboard)
    offered = wait_for(
        lambda: [name for name in driver.execute_script(BUTTONS) if name.startswith("Dsinga")],
        START_SECONDS,
        "the panels of the dashboard",
    )
    for name in SHOWN:
        driver.execute_script(CLICK, name)
        time.sleep(3)
    driver.execute_script(TILE)
    time.sleep(15)  # a page that is moved is loaded anew
    driver.save_screenshot(str(out / "jupyterlab.png"))
    return sorted(offered)


def main() -> int:
    from selenium import webdriver

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={WINDOW}"):
        options.add_argument(word)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    job = dsinga.load(str(JOB), ["train_steps=1000", "disp_freq=20", "test_freq=200"])
    jobs = [job.replace(name="sync"), job.replace(name="async", cluster=ClusterConf(nworker_groups=2))]
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        lab_server(Path(folder)) as lab,
        webdriver.Chrome(options, service) as driver,
    ):
        threads = [
            threading.Thread(target=dsinga.train, args=(job, client), kwargs={"workers": workers, "progress": False})
            for job, workers in zip(jobs, (2, None), strict=True)
        ]
        for thread in threads:
            thread.start()
        offered = look(driver, lab, client.dashboard_link, out)
        for thread in threads:
            thread.join(300)
    print("the extension offers", ", ".join(offered))
    return int(offered != sorted(f"Dsinga {name.title()}" for name in PANELS))


if __name__ == "__main__":
    raise SystemExit(main())
