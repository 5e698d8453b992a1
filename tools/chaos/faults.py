"""The kinds of faults, how each is caused at random moments, and a cluster whose lost processes come back."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import dask
from distributed import Client
from distributed.utils import get_mp_context

from dsinga.base.errors import RunError, UserError
from dsinga.base.registry import nearest
from dsinga.cluster import available_workers, connect

_log = logging.getLogger(__name__)

# Seconds for which a process stands still: a pause that is no loss, and one that must count as the loss of the worker.
PAUSE_SECONDS = 5.0
STOP_SECONDS = 60.0
# Seconds that a process has to answer, before the fault happens to it, that it is about to.
ANSWER_SECONDS = 0.05
# Seconds to wait for a Dask worker's answer.
REPLY_SECONDS = 30.0
# Seconds to wait for processes that were lost to come back, and between two looks.
RETURN_SECONDS = 60.0
CHECK_SECONDS = 0.2


@dataclass
class CausedFault:
    """A fault that has happened.

    Attributes:
        kind: a name of :data:`KINDS`.
        victim: the address of the Dask worker.
        at: when it happened, by ``time.monotonic`` of the driver.
        failed: why it could not be caused, "" where it was.
    """

    kind: str
    victim: str
    at: float
    failed: str = ""


def kill() -> None:
    """End this process by SIGKILL, as the kernel does that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    """End this process by reading from the address 0."""
    ctypes.string_at(0)


def stop(seconds: float) -> None:
    """Stop this process by SIGSTOP; another process lets it go on ``seconds`` later."""
    wake = f"sleep {seconds:g}; kill -CONT {os.getpid()} 2>/dev/null"
    subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _soon(action: Callable[..., object], *arguments: float) -> None:
    """Call ``action`` in a thread when the caller has had time to answer."""
    timer = threading.Timer(ANSWER_SECONDS, action, arguments)
    timer.daemon = True
    timer.start()


def _kill() -> None:
    _soon(kill)


def _segfault() -> None:
    _soon(segfault)


def _exit() -> None:
    """End this process with the status 1, as a library does that gives up.

    Not by sys.exit, which Dask takes for a wish to close the nanny, too: the Dask worker would never come back.
    """
    _soon(os._exit, 1)


def _pause() -> None:
    _soon(stop, PAUSE_SECONDS)


def _stop() -> None:
    _soon(stop, STOP_SECONDS)


# What each kind runs in the worker's process. "retire" is asked of the scheduler.
IN_PROCESS: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "exit": _exit,
    "segfault": _segfault,
    "pause": _pause,
    "stop": _stop,
}
KINDS = (*IN_PROCESS, "retire")
# Seconds for which the victims of a kind answer nothing.
STILL_SECONDS = {"pause": PAUSE_SECONDS, "stop": STOP_SECONDS}
# Those after which the worker comes back by its nanny, and soon.
DEADLY = ("kill", "exit", "segfault")


def check_kinds(kinds: str) -> list[str]:
    """Return the kinds in a text such as "kill,pause". Raises UserError for one that there is not."""
    names = kinds.replace(",", " ").split()
    for name in names:
        if name not in KINDS:
            raise UserError(f"{name!r} is no kind of fault{nearest(name, KINDS)}; choose from {', '.join(KINDS)}")
    if not names:
        raise UserError(f"no kind of fault is given; choose from {', '.join(KINDS)}")
    return names


def cause(client: Client, kind: str, address: str) -> CausedFault:
    """Cause a fault of a kind in the process of the Dask worker at ``address``, and return it."""
    failed = ""
    delay = 0.0 if kind == "retire" else ANSWER_SECONDS
    try:
        if kind == "retire":
            client.retire_workers([address], close_workers=True)
        else:
            client.run(IN_PROCESS[kind], workers=[address], callback_timeout=REPLY_SECONDS)
    except Exception as error:  # the worker may have gone by itself, or its scheduler
        failed = f"{type(error).__name__}: {error}"
    return CausedFault(kind, address, time.monotonic() + delay, failed)


class FaultInjector:
    """Causes faults in a thread, as a Poisson process: each at a random moment, in a random Dask worker.

    ``distributed.chaos.KillWorker`` draws such moments too, but in each worker without a seed, and tells nobody when.

    Attributes:
        faults: those that have happened.
    """

    def __init__(self, client: Client, kinds: Sequence[str], mtbf: float, seed: int):
        self.faults: list[CausedFault] = []
        self._client, self._kinds, self._mtbf = client, kinds, mtbf
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dsinga-chaos", daemon=True)

    def __enter__(self) -> FaultInjector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._random.expovariate(1 / self._mtbf)):
            kind, place = self._random.choice(self._kinds), self._random.random()
            victims = self._victims()
            if victims:
                fault = cause(self._client, kind, victims[int(place * len(victims))])
                self.faults.append(fault)
                _log.info("fault %d: %s of the Dask worker %s %s", len(self.faults), kind, fault.victim, fault.failed)

    def _victims(self) -> list[str]:
        """Return the Dask workers that answer: not those that an earlier fault has stopped."""
        now = time.monotonic()
        still = {fault.victim for fault in self.faults if now < fault.at + STILL_SECONDS.get(fault.kind, 0.0)}
        return sorted(available_workers(self._client).keys() - still)


@contextlib.contextmanager
def process_cluster(workers: int) -> Iterator[Client]:
    """Start a scheduler in this process and ``workers`` worker processes; yield a client.

    Processes are forked from one that has imported dsinga: an import would take seconds of each recovery, and of the
    cores that the other workers need.
    """
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context()  # names modules of its own, the first time
        multiprocessing.set_forkserver_preload(["dsinga.cluster.run.driver", "distributed.nanny"])
        with connect(workers=workers, separate_processes=True) as client:
            yield client


def wait_for_return(client: Client, workers: int) -> None:
    """Wait until the cluster has ``workers`` Dask workers again; ask a cluster that was started here for them.

    Raises RunError where they do not come.
    """
    deadline = time.monotonic() + RETURN_SECONDS
    while len(available_workers(client)) < workers:
        if time.monotonic() > deadline:
            raise RunError(
                f"{len(available_workers(client))} of {workers} Dask workers are left after {RETURN_SECONDS:g} s; "
                "start them with nannies, which restart lost processes, or leave out the kind retire"
            )
        if client.cluster is not None:  # it lists retired workers for a while, and replaces them when asked after that
            client.cluster.scale(workers)
        threading.Event().wait(CHECK_SECONDS)
