"""The Python API: train, evaluate, predict and plan, on a given Dask cluster or in this process."""

from __future__ import annotations

import contextlib
import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga import cluster
from dsinga.checkpoint import read_params
from dsinga.cluster import text_generation
from dsinga.errors import UserError
from dsinga.extensions import ExtensionLike
from dsinga.job import ClusterConf, Job, Phase, load
from dsinga.monitor import History, RunMonitor
from dsinga.net import NeuralNet, PartitionedNet

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from distributed import Client

    from dsinga.cluster import Arrays
    from dsinga.planner.plan import Plan

PHASES = {"train": Phase.kTrain, "val": Phase.kVal, "test": Phase.kTest, "deploy": Phase.kDeploy}


@dataclass
class Result:
    """The result of a training run.

    Attributes:
        job: the job.
        params: float32 arrays by name.
        history: the metrics of the run.
        net: the training net.
        step: the number of steps done.
        workspace: the folder of metrics and checkpoints, None without one.
        stopped: a sentence that says why training ended before ``train_steps``, "" if it did not.
        remarks: sentences of extensions about the result, such as which step's params these are.
    """

    job: Job
    params: Arrays
    history: History
    net: NeuralNet
    step: int
    workspace: Path | None
    stopped: str = ""
    remarks: Sequence[str] = ()

    def __repr__(self) -> str:
        last = {row["phase"]: row for row in self.history}
        ends = [f"{phase} {_figures(row)}" for phase, row in last.items()] or ["no metrics"]
        sentences = [sentence for sentence in (self.stopped, *self.remarks) if sentence]
        return f"<Result of {self.job.name!r} after {self.step} steps: {'; '.join([*ends, *sentences])}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{self.history._repr_html_()}"


def _figures(row: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in ("step", "phase", "time"))


def train(
    job: Job | str | os.PathLike[str],
    client: Client | None = None,
    *,
    workspace: str | os.PathLike[str] | None = None,
    data_root: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    progress: bool = True,
    grain: str = "round",
    extensions: Sequence[ExtensionLike] = (),
) -> Result:
    """Train a job and return the result.

    Args:
        job: a Job, or the path of a job file.
        client: a Dask client; by default a cluster is started in this process for the run, with as many workers as the
            job names, else one, which share all cores.
        workspace: folder for ``metrics.jsonl`` and ``checkpoint/``; by default the job's, if it names one.
        data_root: where relative paths are looked up after the working directory and the job file's folder.
        workers: overrides the number of workers of each worker group of the job.
        resume: continue from the last checkpoint in the workspace.
        progress: show a progress line (in a notebook: a picture of the metrics).
        grain: "round", or "graph" to make each iteration a Dask task graph, which the dashboard shows layer by layer:
            slower, with the same results.
        extensions: what the training loop does besides training, after the extensions that the job names: objects of
            ``dsinga.extensions``, and functions that are called as ``function(step, metrics)`` for each row of metrics.

    Raises:
        UserError: before training, for a fault in the job, the stores, the extensions, or the size of the cluster.
        RunError: where a worker or a server is lost during training.
    """
    job = job if isinstance(job, Job) else load(job)
    if workers is not None:
        job = with_workers(job, workers)
    named = workspace or (job.cluster.workspace if job.cluster else None)
    folder = Path(named) if named else None
    with contextlib.ExitStack() as stack:
        dashboard = grain == "graph"  # its tasks are for looking at
        client = client or stack.enter_context(cluster.connect(workers=wanted_workers(job), dashboard=dashboard))
        observer = stack.enter_context(RunMonitor(job.name, job.train_steps, folder, resume, progress))
        outcome = cluster.train(
            job,
            client,
            observer,
            workspace=folder,
            roots=roots(job, data_root),
            resume=resume,
            grain=cluster.find_grain(grain),
            extensions=extensions,
        )
        for sentence in (outcome.stopped, *outcome.remarks):
            if sentence:
                observer.remark(sentence)
    return Result(
        job,
        outcome.params,
        observer.history,
        outcome.net,
        outcome.step,
        folder,
        outcome.stopped,
        tuple(outcome.remarks),
    )


def evaluate(
    job: Job | str | os.PathLike[str],
    params: Arrays | str | os.PathLike[str],
    phase: str = "test",
    client: Client | None = None,
    *,
    data_root: str | None = None,
) -> dict[str, float]:
    """Return the mean loss and metrics of ``params`` over all records of ``phase``: "train", "val" or "test".

    ``params`` are arrays by name, or the path of a checkpoint. Raises UserError for bad input.
    """
    job = job if isinstance(job, Job) else load(job)
    with _client(client) as client:
        return cluster.evaluate(job, client, _params(params), _phase(phase), roots(job, data_root))


def predict(
    job: Job | str | os.PathLike[str],
    params: Arrays | str | os.PathLike[str],
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data_root: str | None = None,
) -> np.ndarray:
    """Return the output of ``layer`` for every record of ``phase``, in the order of the store: (records, ...).

    ``params`` are arrays by name, or the path of a checkpoint. Raises UserError for bad input. Use
    :func:`predict_batches` where the result does not fit into memory.
    """
    return np.concatenate(list(predict_batches(job, params, layer, phase, client, data_root=data_root)))


def predict_batches(
    job: Job | str | os.PathLike[str],
    params: Arrays | str | os.PathLike[str],
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data_root: str | None = None,
) -> Iterator[np.ndarray]:
    """Yield the output of ``layer`` batch by batch: (rows, ...). Arguments are those of :func:`predict`."""
    for feature, _ in predict_with_labels(job, params, layer, phase, client, data_root=data_root):
        yield feature


def predict_with_labels(
    job: Job | str | os.PathLike[str],
    params: Arrays | str | os.PathLike[str],
    layer: str,
    phase: str = "test",
    client: Client | None = None,
    *,
    data_root: str | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield the output of ``layer`` (rows, ...) and the labels (rows,), None without labels, batch by batch.

    Arguments are those of :func:`predict`. :func:`dsinga.data.write_store` takes such pairs.
    """
    job = job if isinstance(job, Job) else load(job)
    with _client(client) as client:
        yield from cluster.predict(job, client, _params(params), layer, _phase(phase), roots(job, data_root))


def generate(
    job: Job | str | os.PathLike[str],
    params: Arrays | str | os.PathLike[str],
    seed_text: str = "",
    length: int = 500,
    temperature: float = 1.0,
    seed: int = 0,
    *,
    data_root: str | None = None,
) -> str:
    """Return a text of ``length`` characters, or words after a blank, that continues ``seed_text``.

    ``job`` is that of a net that predicts the next character or word of a text (kCharRNN), ``params`` are arrays by
    name, or the path of a checkpoint. Each character is drawn from the predicted distribution: a lower ``temperature``
    prefers the more probable ones, and 0 always takes the most probable one. Without a ``seed_text`` the first one is
    drawn uniformly. The same ``seed`` gives the same text. Raises UserError for bad input, such as characters that the
    vocabulary lacks.
    """
    job = job if isinstance(job, Job) else load(job)
    return text_generation.generate(job, _params(params), seed_text, length, temperature, seed, roots(job, data_root))


def build_net(job: Job | str | os.PathLike[str], phase: str = "train", *, data_root: str | None = None) -> NeuralNet:
    """Return the net of a phase, without training: its layers, shapes and params. Raises UserError for bad input."""
    job = job if isinstance(job, Job) else load(job)
    return cluster.build_net(job, _phase(phase), roots(job, data_root))


def partition_net(
    job: Job | str | os.PathLike[str], workers: int, phase: str = "train", *, data_root: str | None = None
) -> PartitionedNet:
    """Return the net of a phase, cut for ``workers`` workers of a group, without training.

    In a notebook it is drawn with a colour for each worker. ``partition: auto`` is ignored, because its choice depends
    on the cluster; see :func:`plan`. Raises UserError for bad input.
    """
    job = with_workers(job if isinstance(job, Job) else load(job), workers)
    return cluster.build_partitioned_net(job, _phase(phase), workers, roots(job, data_root))


def plan(
    job: Job | str | os.PathLike[str],
    *,
    workers: int | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    data_root: str | None = None,
) -> Plan:
    """Predict the time of an iteration for each way to partition the net of a job.

    Layers are timed on this machine once and cached (dask config ``dsinga.cache``).

    Args:
        job: a Job, or the path of a job file. Its stores may be missing if it gives the shapes of their records.
        workers: the number of workers of the worker group, which need not exist; by default the job's, else one for
            each core of this machine.
        bandwidth: that of the network between machines, such as "1Gbit" or "100MB/s".
        latency: that of the network between machines, such as "0.1ms". With a bandwidth or a latency, workers are on
            machines like this one; without, on this machine as far as it has cores.
        data_root: where relative paths of the job are looked up last.

    Raises UserError for bad input.
    """
    import dask.config
    from dask.system import CPU_COUNT

    from dsinga.planner.network import parse_network
    from dsinga.planner.pricing import make_plan

    job = job if isinstance(job, Job) else load(job)
    network, cache = parse_network(bandwidth, latency), dask.config.get("dsinga.cache", None)
    return make_plan(job, CPU_COUNT, workers=workers, network=network, roots=roots(job, data_root), cache=cache)


def roots(job: Job, data_root: str | None) -> list[str]:
    """Return the folders where relative paths of the job are looked up after the working directory."""
    where = job.where()
    beside = [str(Path(where.file).resolve().parent)] if where else []
    return beside + ([data_root] if data_root else [])


def with_workers(job: Job, workers: int) -> Job:
    """Return the job with ``workers`` workers in each worker group."""
    if workers < 1:
        raise UserError(f"a job needs at least 1 worker, not {workers}")
    conf = job.cluster or ClusterConf()
    return job.replace(cluster=conf.replace(nworkers_per_group=workers))


def wanted_workers(job: Job) -> int:
    """Return the number of workers in all worker groups of the job, which a cluster for it must have.

    Without ``cluster`` it is 1, with all cores: kernels on several cores are as fast as several workers with a core
    each, and for small nets faster.
    """
    conf = job.cluster or ClusterConf()
    return conf.nworker_groups * conf.nworkers_per_group


def _client(client: Client | None) -> contextlib.AbstractContextManager[Client]:
    return contextlib.nullcontext(client) if client else cluster.connect()


def _params(params: Arrays | str | os.PathLike[str]) -> Arrays:
    return params if isinstance(params, dict) else read_params(params)


def _phase(name: str) -> Phase:
    try:
        return PHASES[name]
    except KeyError:
        raise UserError(f"there is no phase {name!r}; the phases are {', '.join(PHASES)}") from None


__all__: Sequence[str] = [
    "Result",
    "build_net",
    "evaluate",
    "generate",
    "partition_net",
    "plan",
    "predict",
    "predict_batches",
    "predict_with_labels",
    "train",
]
