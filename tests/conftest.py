"""Sets up every test: kernel threads, repeatable examples, shared fixtures, the folder of real data."""

import asyncio
import concurrent.futures
import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Read by OpenMP and OpenBLAS when they are loaded. Tests run workers in threads: more threads in kernels only thrash.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# A kernel thread that spins at a barrier keeps a busy core from the thread that it waits for: seconds become minutes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What tests write need not outlive a loss of power, for which thousands of files would wait for the disk.
os.fsync = os.fstat  # type: ignore[assignment]
# Tests start hundreds of processes: each would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Shells start commands in the background with this signal ignored; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# MLflow would report its use over the network.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# jsonschema, which nbformat imports, would compile a grammar for a format that no schema here has: four seconds.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

import dask.config  # noqa: E402
import distributed  # noqa: E402
import hypothesis  # noqa: E402
import pytest  # noqa: E402

# Tests import modules of it alone, too, which are rewritten when the first contract is used.
pytest.register_assert_rewrite("dsinga.testing")

from tests.support.clusters import client, forked, job, processes, stores, threads  # noqa: E402, F401
from tests.support.command_line import dsinga, folder  # noqa: E402, F401
from tests.support.freed_memory import freed_memory, use_few_arenas  # noqa: E402, F401
from tests.support.gc_thresholds import collect_rarely  # noqa: E402
from tests.support.order import rank  # noqa: E402
from tests.support.quick_rates import measure_quickly  # noqa: E402
from tests.support.small_disk import small_disk  # noqa: E402, F401

# The machine's speed must not decide whether a test passes, nor yesterday's examples what is tested today.
hypothesis.settings.register_profile("dsinga", deadline=None, derandomize=True, database=None, max_examples=25)
hypothesis.settings.load_profile("dsinga")
use_few_arenas()
SCRATCH = f"{os.sep}dask-scratch-space{os.sep}"
# A test that hangs outside Python's reach ends its process after so many seconds, with the stacks: the run, or with -n
# that of some of the tests, which fails this one and goes on with the next.
HANG_SECONDS, REARMED_SECONDS = 1500, 60
hang = {"errors": 2, "armed": -float(REARMED_SECONDS)}


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes of ``-n auto``: one more than cores, since tests wait for processes that start."""
    return (os.cpu_count() or 1) + 1


def pytest_configure() -> None:
    """Keep where errors go, which a test may capture."""
    hang["errors"] = os.dup(2)


def pytest_runtest_logstart() -> None:
    """Wait anew for a test that hangs, once a minute: each time starts a thread, a quarter of what an empty test takes.

    That is why pytest's own ``faulthandler_timeout``, which does so for each test, is not set.
    """
    if time.monotonic() - hang["armed"] > REARMED_SECONDS:
        hang["armed"] = time.monotonic()
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=int(hang["errors"]))


def pytest_unconfigure() -> None:
    """Wait for no test any more; collect garbage once, where pytest does ten times."""
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    gc.freeze()


def pytest_collectstart() -> None:
    """Switch the garbage collector off while modules and thousands of tests are made, all of which last."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests so that processes that share them have work until all end."""
    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests: it took a second each time.

    Later it comes for more objects at once: with Python's threshold it takes one second of twelve that tests take.
    """
    gc.freeze()
    collect_rarely()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def quick_rates() -> Iterator[None]:
    """Let rates of layers be measured quickly, and count as taken on an idle machine."""
    with pytest.MonkeyPatch.context() as patch:
        measure_quickly(patch.setattr)
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets, $DSINGA_DATA; skips the test where there is none. Mark such tests ``data``."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    records = Path(os.environ.get("DSINGA_DATA", beside))
    if not records.is_dir():
        pytest.skip(f"no real data: {records} is not a folder (set DSINGA_DATA)")
    return records


@pytest.fixture(autouse=True)
def no_default_client() -> Iterator[None]:
    """Undo that a Dask worker which runs in this process makes its own client the default of all tests after it.

    Such a client is closed with the last Dask worker of the process only: without its scheduler it would try to reach
    one for as long.
    """
    yield
    dask.config.config.pop("scheduler", None)
    distributed.client._global_clients.clear()
    running = [worker._client for worker in distributed.Worker._instances if worker.status.name == "running"]
    closing = []
    for left in [*distributed.Worker._initialized_clients]:
        loop = left.loop.asyncio_loop  # one that has ended closes nothing
        if left not in running and left.status != "closed" and loop.is_running():
            closing.append(asyncio.run_coroutine_threadsafe(left._close(fast=True), loop))
    concurrent.futures.wait(closing, 5)  # some wait for a scheduler that is gone
    # Dask leaves the folders of most workers of this process there. Every failed import and every look for a package's
    # version tries them, also in processes that start later.
    sys.path[:] = [path for path in sys.path if SCRATCH not in path or os.path.exists(path)]
