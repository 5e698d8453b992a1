"""The steps of a run's start, before each of which a process of a Dask cluster is killed or stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.api import evaluate, predict, train
from dsinga.base.errors import RunError, UserError
from dsinga.job import ClusterConf, Job, PartitionMethod, loads
from tests.support.forked_cluster import ForkedCluster
from tests.support.small_job import JOB, without_restarts
from tools.faults.moments import BeforeCall

# A layer is cut along its outputs, so that workers send each other arrays.
CUT_JOB = JOB.replace('layer { name: "ip"', 'layer { partition_dim: 1 name: "ip"')
TWO = ClusterConf(nworkers_per_group=2, nservers_per_group=2)
ASYNCHRONOUS = ClusterConf(nworker_groups=2, nserver_groups=2)
REPLICATED = ClusterConf(nworkers_per_group=2, nservers_per_group=2, update="kWorker")


class Stage(NamedTuple):
    """A step of a start: the function that does it, and the run that comes to it.

    ``number`` counts the calls of the function before which nothing happens yet.
    """

    function: str
    conf: ClusterConf = TWO
    number: int = 0
    face: str = "train"
    changes: dict[str, Any] = {}


STAGES = {
    "placed": Stage("cluster.placing.prepare.place"),
    "workers asked": Stage("cluster.preflight.check._ask"),
    "links measured": Stage("addons.planner.automatic.measure_links", changes={"auto": True}),
    "barriers measured": Stage("addons.planner.automatic._measure_barrier_between", changes={"auto": True}),
    "cuts searched": Stage("addons.planner.automatic.gather", changes={"auto": True}),
    "GPUs looked for": Stage("cluster.placing.devices.choose_devices", changes={"gpu": [0]}),
    "nets configured": Stage("cluster.placing.prepare.configure"),
    "extensions made": Stage("cluster.run.driver.begin_run"),
    "run starts": Stage("cluster.run.cluster_run.ClusterRun.start"),
    "servers created": Stage("cluster.run.servers.gather"),
    "params put": Stage("cluster.run.servers.Servers.put"),
    "params put back": Stage("cluster.run.servers.Servers.put", face="resume"),
    "server call waits": Stage("cluster.run.servers.wait_for"),
    "servers linked": Stage("cluster.run.servers.Servers.link", ClusterConf(nworker_groups=2, nserver_groups=2)),
    "configuration sent": Stage("cluster.run.worker_tasks.WorkerTasks.share"),
    "configuration shared": Stage("cluster.run.worker_tasks.share"),
    "workers created": Stage("cluster.run.worker_tasks.WorkerTasks.create"),
    "bridges connected": Stage("cluster.run.worker_tasks.WorkerTasks.submit"),
    "replicas sent": Stage("cluster.run.cluster_run.replica_values", REPLICATED),
    "replicas shared": Stage("cluster.run.worker_tasks.share", REPLICATED, number=1),
    "events begin": Stage("cluster.run_events.RunEvents.start"),
    "extensions start": Stage("loop.training_loop.TrainingLoop._run_to_end"),
    "first pause": Stage("loop.training_loop.TrainingLoop._pause"),
    "first test": Stage("cluster.run.cluster_run.ClusterRun.evaluate", changes={"test_freq": 10}),
    "first snapshot": Stage("cluster.run.cluster_run.ClusterRun.snapshot", changes={"train_steps": 20}),
    "warm-up ends": Stage("cluster.run.cluster_run.ClusterRun.join", ASYNCHRONOUS, changes={"warmup": True}),
    "first round sent": Stage("cluster.run.group_rounds.steps_text"),
    "first round awaited": Stage("loop.training_loop.TrainingLoop._read_round"),
    "asynchronous round": Stage("loop.training_loop.TrainingLoop._read_round", ASYNCHRONOUS),
    "evaluate: asked": Stage("cluster.inference.check_workers_ready", face="evaluate"),
    "evaluate: shared": Stage("cluster.inference.share", face="evaluate"),
    "evaluate: awaited": Stage("cluster.inference.gather", face="evaluate"),
    "predict: shared": Stage("cluster.inference.share", face="predict"),
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


def run_stage(stage: Stage, cluster: ForkedCluster, victim: str, number: int, folder: Path) -> tuple[float, str]:
    """Run to a stage, where the victim is lost; return the seconds until the run has ended, and how."""
    client, job = cluster.client, without_restarts(job_of(stage, folder))
    params = arguments = None
    if stage.face in ("evaluate", "predict"):
        params = train(job.replace(train_steps=1), client, progress=False).params
    elif stage.face == "resume":
        train(job.replace(train_steps=2, checkpoint_freq=2), client, progress=False, workspace=folder / "resumed")
    with BeforeCall(stage.function, cluster.pids[victim], number, stage.number) as signalled:
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
        return (time.monotonic() - signalled.at if signalled.at else -1.0), end


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
