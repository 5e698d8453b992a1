"""Dask workers in processes of their own, each with an environment that lacks something, for an existing scheduler."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from distributed import Client

from dsinga.cluster import available_workers
from tests.support.executed_pages import ROOT
from tests.support.polling import wait_until

# Executed by ``dask worker --preload`` in the worker's process, before anything else is imported there.
WITHOUT_DSINGA = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dsinga":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
OLDER_DSINGA = """
import sys, types

sys.modules["dsinga"] = types.ModuleType("dsinga")
sys.modules["dsinga"].__version__ = "0.0.9"
"""
WITHOUT_ONEDNN = """
import ctypes

class Library(ctypes.CDLL):
    def __init__(self, name, *arguments, **options):
        if "dnnl" in str(name):
            raise OSError(f"{name}: cannot open shared object file")
        super().__init__(name, *arguments, **options)

ctypes.CDLL = Library
"""


@contextlib.contextmanager
def worker_processes(client: Client, preloads: Mapping[str, str], folder: Path) -> Iterator[dict[str, str]]:
    """Start a Dask worker with one thread for each name, with what it preloads; give their addresses by name."""
    environment = {name: value for name, value in os.environ.items() if name != "DSINGA_OPS"}
    environment |= {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}
    processes, others, addresses = [], _addresses(client), {}
    try:
        for name, text in preloads.items():
            preload = folder / f"preload_{name}.py"
            preload.write_text(text)
            command = [sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address, "--no-nanny"]
            command += "--nthreads 1 --memory-limit 0 --no-dashboard --name".split()
            command += [name, "--preload", str(preload)]
            process = subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL)
            processes.append(process)
        client.wait_for_workers(len(others) + len(preloads), timeout=60)
        addresses = {address: name for address, name in _addresses(client).items() if address not in others}
        yield {name: address for address, name in addresses.items()}
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(timeout=60)
        wait_until(lambda: not addresses.keys() & _addresses(client).keys())


def _addresses(client: Client) -> dict[str, str]:
    """Return the names of all Dask workers, by address."""
    return {address: info["name"] for address, info in available_workers(client).items()}
