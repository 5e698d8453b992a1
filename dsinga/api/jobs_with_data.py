"""Helpers of the API's functions: jobs with their data, and the folders where paths are looked up."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from dsinga.api.result import Result
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.job import ClusterConf, Job, Phase, load
from dsinga.net import input_layers
from dsinga.reading.bind_records import bind_records

_log = logging.getLogger(__name__)


def job_with_data(
    job: Job | str | os.PathLike[str], data: Any, phase: Phase, data_root: str | None, params: Any = None
) -> Job:
    """Return the job, loaded if it is a path, whose input layers read ``data`` if that is not None.

    Where ``params`` are a result, classes and columns of ``data`` have the codes and the order of its training records.
    """
    if not isinstance(job, (Job, str, os.PathLike)):
        raise UserError(f"job must be a dsinga.Job or the path of a job file, not a {type(job).__name__}")
    job = job if isinstance(job, Job) else load(job)
    trained = params.job if isinstance(params, Result) else None
    return job if data is None else bind_records(job, data, phase, roots(job, data_root), trained)


def say_overlaps(job: Job, *phases: Phase) -> None:
    """Say in the log where windows of the records of some phases overlap, so that scores weigh points unequally."""
    layers = [layer for phase in phases for layer in input_layers(job.neuralnet, phase)]
    windows = [(layer.name, layer.store_conf.windows) for layer in layers if layer.store_conf is not None]
    for sentence in dict.fromkeys(conf.remark_on_scores(name) for name, conf in windows if conf is not None):
        if sentence:
            _log.warning("%s", sentence)


def roots(job: Job, data_root: str | None) -> list[str]:
    """Return the folders where relative paths of the job are looked up after the working directory."""
    where = job.where()
    beside = [str(Path(where.file).resolve().parent)] if where else []
    return beside + ([data_root] if data_root else [])


def with_workers(job: Job, workers: int) -> Job:
    """Return the job with ``workers`` workers in each worker group."""
    check_whole("workers", workers, 1)
    conf = job.cluster or ClusterConf()
    return job.replace(cluster=conf.replace(nworkers_per_group=workers))


def patience_of(job: Job) -> float:
    """Return the seconds for which a run of the job waits for Dask workers, or a scheduler, that are still to come."""
    return (job.cluster or ClusterConf()).patience


def wanted_workers(job: Job) -> int:
    """Return the number of workers in all worker groups of the job, which a cluster for it must have.

    Without ``cluster`` it is 1, with all cores: kernels on several cores are as fast as several workers with a core
    each, and for small nets faster.
    """
    conf = job.cluster or ClusterConf()
    return conf.nworker_groups * conf.nworkers_per_group
