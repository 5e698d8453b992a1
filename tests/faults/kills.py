"""Kills, or stops, a process of a Dask cluster before each step of a run's start: ``python -m tests.faults.kills``.

Prints for each step how long the run took to end after that, and with which message. The exit status is 1 where a run
does not end in time or its message does not name what was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import dask.config
import numpy as np

from dsinga.api import evaluate, predict, train
from dsinga.data import write_store
from dsinga.errors import RunError, UserError
from dsinga.job import ClusterConf, Job, PartitionMethod, loads
from tests.faults.sockets import CUT_JOB
from tests.support.forked_cluster import ForkedCluster, forked_cluster
from tests.support.small_job import without_restarts

TWO = ClusterConf(nworkers_per_group=2, nservers_per_group=2)
ASYNCHRONOUS = ClusterConf(nworker_groups=2, nserver_groups=2)
REPLICATED = ClusterConf(nworkers_per_group=2, nservers_per_group=2, update="kWorker")
LOST_SECONDS = 3.0
HANG_SECONDS = 45


class Stage(NamedTuple):
    """A step of a start: the function that does it, and the run that comes to it.

    ``number`` counts the calls of the function before which nothing happens yet.
    """

    function: str
    conf: ClusterConf = TWO
    number: int = 0
    face: str = "train"
    changes: dict[str, Any] = {}


PACKAGE = "dsinga."
STAGES = {
    "placed": Stage("cluster.placing.prepare.place"),
    "workers asked": Stage("cluster.preflight.check._ask"),
    "links measured": Stage("cluster.placing.automatic.measure_links", changes={"auto": True}),
    "barriers measured": Stage("cluster.placing.automatic._measure_barrier_between", changes={"auto": True}),
    "cuts searched": Stage("cluster.placing.automatic.gather", changes={"auto": True}),
    "GPUs looked for": Stage("cluster.placing.devices._ask", changes={"gpu": [0]}),
    "nets configured": Stage("cluster.placing.prepare.configure"),
    "extensions made": Stage("cluster.run.driver.begin_run"),
    "run starts": Stage("cluster.run.cluster_run.ClusterRun.start"),
    "servers created": Stage("cluster.run.servers.gather"),
    "params put": Stage("cluster.run.servers.Servers.put"),
    "params put back": Stage("cluster.run.servers.Servers.put", face="resume"),
    "server call waits": Stage("cluster.run.servers.wait_for"),
    "servers linked": Stage("cluster.run.servers.Servers.link", ClusterConf(nworker_groups=2, nserver_groups=2)),
    "configuration sent": Stage("cluster.run.cluster_run.ClusterRun._shared_config"),
    "configuration shared": Stage("cluster.run.cluster_run.share"),
    "workers created": Stage("cluster.run.cluster_run.ClusterRun._create_workers"),
    "bridges connected": Stage("cluster.run.cluster_run.ClusterRun._connect_peers"),
    "replicas sent": Stage("cluster.run.cluster_run.ClusterRun._set_replicas", REPLICATED),
    "replicas shared": Stage("cluster.run.cluster_run.share", REPLICATED, number=1),
    "events begin": Stage("cluster.events.run_events.RunEvents.start"),
    "extensions start": Stage("loop.training_loop.TrainingLoop._run_to_end"),
    "first pause": Stage("loop.training_loop.TrainingLoop._pause"),
    "first test": Stage("cluster.run.cluster_run.ClusterRun.evaluate", changes={"test_freq": 10}),
    "first snapshot": Stage("cluster.run.cluster_run.ClusterRun.snapshot", changes={"train_steps": 20}),
    "warm-up ends": Stage("cluster.run.cluster_run.ClusterRun.join", ASYNCHRONOUS, changes={"warmup": True}),
    "first round sent": Stage("cluster.run.cluster_run.ClusterRun.send"),
    "first round awaited": Stage("loop.training_loop.TrainingLoop._read_round"),
    "asynchronous round": Stage("loop.training_loop.TrainingLoop._read_round", ASYNCHRONOUS),
    "evaluate: asked": Stage("cluster.inference.inference.check_workers_ready", face="evaluate"),
    "evaluate: shared": Stage("cluster.inference.inference.share", face="evaluate"),
    "evaluate: awaited": Stage("cluster.inference.inference.gather", face="evaluate"),
    "predict: shared": Stage("cluster.inference.inference.share", face="predict"),
}


def job_of(stage: Stage, folder: Path) -> Job:
    """Return a job that comes to a stage."""
    job = loads(CUT_JOB, str(folder / "small.conf")).replace(cluster=stage.conf, train_steps=1_000_000)
    changes = dict(stage.changes)
    if changes.pop("auto", False):
        job = job.replace(neuralnet=job.neuralnet.replace(partition=PartitionMethod.auto))
    if changes.pop("warmup", False):
        job = job.replace(warmup_steps=20)
    return job.replace(**changes)


def owner_of(path: str) -> tuple[Any, str]:
    """Return the module or class of a function in dsinga, and the function's name in it."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            owner = importlib.import_module(PACKAGE + ".".join(names[:count]))
            for name in names[count:-1]:
                owner = getattr(owner, name)
            return owner, names[-1]
    raise LookupError(path)


class Blow:
    """Sends a signal to a process before a function is called, or some seconds after that."""

    def __init__(self, stage: Stage, pid: int, number: int, delay: float):
        self.at = 0.0
        self._owner, self._name = owner_of(stage.function)
        self._function: Callable[..., Any] = getattr(self._owner, self._name)
        self._left, self._pid, self._number, self._delay = stage.number, pid, number, delay

    def __enter__(self) -> Blow:
        blow = self

        def call(*arguments: Any, **options: Any) -> Any:
            if blow._left == 0:
                if blow._delay:
                    threading.Timer(blow._delay, blow._strike).start()
                else:
                    blow._strike()
            blow._left -= 1
            return blow._function(*arguments, **options)

        self._patch = mock.patch.object(self._owner, self._name, call)
        self._patch.start()
        return self

    def _strike(self) -> None:
        self.at = time.monotonic()
        os.kill(self._pid, self._number)

    def __exit__(self, *_: Any) -> None:
        self._patch.stop()


def run_stage(
    stage: Stage, cluster: ForkedCluster, victim: str, number: int, delay: float, folder: Path
) -> tuple[float, str]:
    """Run to a stage, where the victim is lost; return the seconds until the run has ended, and how."""
    client, job = cluster.client, without_restarts(job_of(stage, folder))
    params = arguments = None
    if stage.face in ("evaluate", "predict"):
        params = train(job.replace(train_steps=1), client, progress=False).params
    elif stage.face == "resume":
        train(job.replace(train_steps=2, checkpoint_freq=2), client, progress=False, workspace=folder / "resumed")
    with Blow(stage, cluster.pids[victim], number, delay) as blow:
        try:
            if stage.face == "evaluate":
                evaluate(job, params, client=client)
            elif stage.face == "predict":
                predict(job, params, "ip", client=client)
            else:
                arguments = {"workspace": folder / "resumed", "resume": True} if stage.face == "resume" else {}
                train(job, client, progress=False, **arguments)
            end = "it ended well"
        except (RunError, UserError) as error:
            end = f"{type(error).__name__}: {error}"
        except BaseException as error:
            end = f"TRACEBACK {error!r}"
        return (time.monotonic() - blow.at if blow.at else -1.0), end


def verdict(stage: Stage, seconds: float, end: str, victim: str, limit: float) -> str:
    """Return what is wrong with an end; "" if nothing is."""
    if seconds < 0:
        return "the stage was not reached"
    if end.startswith("TRACEBACK"):
        return "a traceback"
    if seconds > limit:
        return "too late"
    if end == "it ended well":
        return "" if stage.face in ("evaluate", "predict") else "no error"
    return "" if (victim in end or "waited" in end) else "the victim is not named"


@contextlib.contextmanager
def stores() -> Iterator[Path]:
    """Give a folder with the stores of the small job."""
    with tempfile.TemporaryDirectory(prefix="dsinga-kills-") as name:
        random = np.random.default_rng(7)
        for store, records in (("train", 1000), ("test", 150)):
            images = random.integers(0, 16, (records, 1, 8, 8)).astype(np.uint8)
            write_store(Path(name) / f"{store}.zarr", [(images, random.integers(0, 10, records))])
        yield Path(name)


def _give_up(*_: Any) -> None:
    raise TimeoutError(f"it hung for {HANG_SECONDS} s")


def main() -> int:
    """Go through the stages that the arguments ask for; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--victim", choices=("worker", "scheduler"), default="worker")
    parser.add_argument(
        "--stop", action="store_true", help="stop the process, with dsinga.timeout of 3 s; do not kill it"
    )
    parser.add_argument("--delay", type=float, default=0.0, help="seconds after the begin of each step [0]")
    parser.add_argument("--only", help="the stages whose names contain this")
    options = parser.parse_args()
    number, timeout = (signal.SIGSTOP, 3.0) if options.stop else (signal.SIGKILL, 300.0)
    limit = LOST_SECONDS + (2 * timeout if options.stop else 0)
    failed = 0
    signal.signal(signal.SIGALRM, _give_up)
    with stores() as folder, dask.config.set({"dsinga.timeout": timeout}):
        for name, stage in STAGES.items():
            if options.only and options.only not in name:
                continue
            signal.alarm(HANG_SECONDS)
            with forked_cluster(2) as cluster:
                victim = cluster.workers[1] if options.victim == "worker" else "scheduler"
                seconds, end = run_stage(stage, cluster, victim, number, options.delay, folder)
            wrong = verdict(stage, seconds, end, victim, limit)
            failed += bool(wrong)
            print(f"{name:22s} {seconds:5.2f} s  {wrong or 'right':24s} {end[:150]}", flush=True)
    print(f"{failed} of the stages failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
