"""Runs the notebooks in a real JupyterLab with headless Chromium, and takes pictures.

`python -m tests.notebooks.run_in_jupyterlab OUT [NAME]...` needs jupyterlab, selenium, chromium and
chromedriver. It copies notebooks/ and datasets/ to a temporary folder, starts a server there, opens each notebook in
the browser, runs all its cells, and writes OUT/NAME-K.png. It ends with status 1 if a cell has failed.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BOOKS = (ROOT / "notebooks").rglob("*.ipynb")
START_SECONDS = 60
RUN_SECONDS = 600
WINDOW = "1200,1600"
CELLS_A_PICTURE = 4
# No question about news over the pictures.
SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}

# The page's notebook panel, which JupyterLab gives to scripts with LabApp.expose_app_in_browser.
PANEL = "const panel = window.jupyterapp.shell.currentWidget; "
STATE = f"""
if (!window.jupyterapp || !window.jupyterapp.shell.currentWidget) return null;
{PANEL}
if (!panel.sessionContext || !panel.sessionContext.session || !panel.sessionContext.session.kernel) return null;
const cells = panel.content.model ? [...panel.content.model.cells] : [];
return {{
  status: panel.sessionContext.session.kernel.status,
  cells: cells.length,
  waiting: cells.filter(c => c.type == 'code' && c.sharedModel.source && c.executionCount == null).length,
  errors: cells.filter(c => c.type == 'code').flatMap(c => c.outputs.toJSON())
    .filter(o => o.output_type == 'error').map(o => o.ename + ': ' + o.evalue),
}};
"""


@contextlib.contextmanager
def lab_server(folder: Path) -> Iterator[str]:
    """Start JupyterLab in ``folder``; yield its address."""
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    options = ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True", "--ServerApp.open_browser=False"]
    (folder / "lab" / "settings").mkdir(parents=True)
    (folder / "lab" / "settings" / "overrides.json").write_text(json.dumps(SETTINGS))
    options += [f"--LabApp.workspaces_dir={folder}/lab/workspaces", f"--LabApp.app_settings_dir={folder}/lab/settings"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([*command, *options], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield wait_for(lambda: server_address(log), START_SECONDS, "JupyterLab's address")
        finally:
            server.terminate()
            server.wait(30)


def server_address(log: Any) -> str | None:
    """Return the address that the server has printed."""
    log.seek(0)
    match = re.search(r"http://(?:localhost|127\.0\.0\.1):\d+", log.read())
    return match[0] if match else None


def wait_for(look: Any, seconds: float, what: str) -> Any:
    """Return what ``look()`` returns as soon as it is true; raise TimeoutError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := look():
            return value
        time.sleep(0.5)
    raise TimeoutError(f"waited {seconds:g} s for {what}")


def run_notebook(driver: Any, address: str, name: str, out: Path) -> list[str]:
    """Open a notebook, run it, take pictures; return the errors of its cells."""
    driver.get(
        f"{address}/lab/workspaces/{name.replace('/', '-')}/tree/notebooks/{name}.ipynb"
    )  # a workspace without other notebooks
    wait_for(lambda: (driver.execute_script(STATE) or {}).get("cells"), START_SECONDS, f"{name} to open")
    driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells');")

    def ended() -> Any:
        state = driver.execute_script(STATE)
        return state if state["errors"] or (state["status"] == "idle" and not state["waiting"]) else None

    state = wait_for(ended, RUN_SECONDS, f"{name} to end")
    for number, first in enumerate(range(0, state["cells"], CELLS_A_PICTURE)):
        driver.execute_script(f"{PANEL} panel.content.scrollToItem({first}, 'start'); ")
        time.sleep(1)
        driver.save_screenshot(str(out / f"{name.replace('/', '-')}-{number}.png"))
    return state["errors"]


def main() -> int:
    from selenium import webdriver

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "names", nargs="*", help="notebooks without .ipynb, such as quickstart or book/1-line; all by default"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.names or sorted(str(path.relative_to(ROOT / "notebooks").with_suffix("")) for path in BOOKS)
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={WINDOW}"):
        options.add_argument(word)
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in ("notebooks", "datasets", "docs", "README.md"):
            source = ROOT / part
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / part)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        with lab_server(folder) as address, webdriver.Chrome(options, service) as driver:
            for name in names:
                started = time.monotonic()
                errors = run_notebook(driver, address, name, arguments.out)
                print(f"{name}: {time.monotonic() - started:.0f} s, {errors or 'no errors'}", flush=True)
                failed |= bool(errors)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
