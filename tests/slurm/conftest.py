"""A running SLURM, and a folder with the scripts of docs/howto/slurm.md."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.executed_pages import ROOT, blocks, command_environment
from tests.support.slurm_queue import Slurm

PAGE = ROOT / "docs" / "howto" / "slurm.md"
# What the page says in comments: a cluster that submits a new job for each that has ended.
ADAPTIVE = ("cluster.scale(jobs=4)", "cluster.adapt(minimum_jobs=0, maximum_jobs=4)")
# The only change to the scripts: the interface that joins the nodes. All nodes of the tests are on this machine.
INTERFACE = ("ib0", "lo")


@pytest.fixture(scope="session")
def running_slurm() -> None:
    """Skip the test where no SLURM answers."""
    if not shutil.which("sinfo") or subprocess.run(["sinfo"], capture_output=True, timeout=30).returncode:
        pytest.skip("no SLURM answers `sinfo`; start one with tests/slurm/start_slurm.sh")


@pytest.fixture(scope="session")
def scripts(running_slurm: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with the files of the page and their records, and the environment to submit them in."""
    folder = tmp_path_factory.mktemp("pages")
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.file:
            (folder / block.file).write_text(block.text.replace(*INTERFACE), encoding="utf-8")
    cluster = (folder / "cluster.py").read_text(encoding="utf-8")
    adaptive = cluster.replace(*ADAPTIVE).replace('"cluster")', '"adaptive")')
    (folder / "adaptive.py").write_text(adaptive, encoding="utf-8")
    environment = command_environment(tmp_path_factory.mktemp("commands"), folder / "cache")
    environment |= {"DASK_LOGGING__DISTRIBUTED": "warning", "OMP_WAIT_POLICY": "passive"}
    environment["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "2s"  # until the job of a Dask worker is replaced
    subprocess.run(["python", "make_data.py"], cwd=folder, env=environment, check=True, timeout=60)
    return folder, environment


@pytest.fixture
def slurm(scripts: tuple[Path, dict[str, str]], tmp_path: Path) -> Iterator[Slurm]:
    """Submits the scripts from a folder of its own, and cancels what is left of its jobs at the end."""
    folder, environment = scripts
    shutil.copytree(folder, tmp_path / "work")
    queue = Slurm(tmp_path / "work", environment)
    for script in ("cluster.py", "adaptive.py"):
        queue.change(script, "SLURMCluster(\n", f'SLURMCluster(\njob_name="{queue.workers}",\n')
    yield queue
    queue.cancel_all()
