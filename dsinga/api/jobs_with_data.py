"""Loads a job with a call's data in place of its stores; defines the result of training."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsinga.base.arguments import check_whole
from dsinga.base.arrays import NamedParams, ParamArrays
from dsinga.base.errors import UserError
from dsinga.data import RecordNames
from dsinga.job import ClusterConf, Job, Phase, load
from dsinga.monitor import NOT_METRICS, RECOVERY, History
from dsinga.net import NeuralNet, input_layers
from dsinga.reading.checked_job import names_of_training

_log = logging.getLogger(__name__)


def job_with_data(
    job: Job | str | os.PathLike[str],
    data: Any,
    phase: Phase,
    data_root: str | os.PathLike[str] | None,
    params: ParamArrays | None = None,
) -> Job:
    """Load a job, and let it read ``data``, if given, in place of its stores.

    Classes and columns of ``data`` get the codes and order that ``params`` were trained with.
    """
    if not isinstance(job, (Job, str, os.PathLike)):
        remedy = "; model.fit(x, y) trains it, or model.job(x, y) is its job" if hasattr(job, "make_job") else ""
        raise UserError(f"job must be a dsinga.Job or the path of a job file, not a {type(job).__name__}{remedy}")
    job = job if isinstance(job, Job) else load(job)
    if data is None:
        return job
    from dsinga.reading.bind_records import bind_records  # not needed for a job that names its records

    names = None if params is None else RecordNames.of_params(params)
    return bind_records(job, data, phase, roots(job, data_root), names)


def warn_of_overlaps(job: Job, *phases: Phase) -> None:
    """Warn if windows of a Dataset overlap, because scores then count some points more than once."""
    layers = [layer for phase in phases for layer in input_layers(job.neuralnet, phase)]
    stores = [(layer.name, layer.store_conf) for layer in layers if layer.store_conf is not None]
    windows = [(name, conf) for name, store in stores for conf in store.definition.values()]
    for sentence in dict.fromkeys(conf.remark_on_scores(name) for name, conf in windows):
        if sentence:
            _log.warning("%s", sentence)


def roots(job: Job, data_root: str | os.PathLike[str] | None) -> list[str]:
    """Return the folders where a job's relative paths are looked up after the working directory."""
    where = job.where()
    beside = [str(Path(where.file).resolve().parent)] if where else []
    return beside + ([os.fspath(data_root)] if data_root else [])


def with_workers(job: Job, workers: int) -> Job:
    """Return the job with this number of workers in each worker group."""
    check_whole("workers", workers, 1)
    conf = job.cluster or ClusterConf()
    return job.replace(cluster=conf.replace(nworkers_per_group=workers))


def patience_of(job: Job) -> float:
    """Return how many seconds a run of the job waits for Dask workers or a scheduler."""
    return (job.cluster or ClusterConf()).patience


def wanted_workers(job: Job) -> int:
    """Return how many workers a job needs, over all worker groups.

    Without ``cluster`` it is 1, with all cores.
    """
    conf = job.cluster or ClusterConf()
    return conf.nworker_groups * conf.nworkers_per_group


@dataclass
class Result:
    """The result of a training run: params, metrics, and where they were written.

    Attributes:
        params: float32 arrays by name.
        history: the metrics of the run.
        workspace: the folder of metrics and checkpoints: a path, or a URL as a str; None without one.
        stopped: a sentence that says why training ended before ``train_steps``, else "".
        remarks: sentences of extensions about the result, such as which step's params these are.
        is_cut: whether a run with ``resume`` does the other steps, as after kStopOnTime.
        unsaved: why the workspace lacks a checkpoint of the last step, as on a full disk; else "".
    """

    job: Job
    params: ParamArrays
    history: History
    net: NeuralNet
    step: int
    workspace: Path | str | None
    stopped: str = ""
    remarks: Sequence[str] = ()
    unsaved: str = ""
    is_cut: bool = False

    def __post_init__(self) -> None:
        self.params = NamedParams(self.params, names_of_training(self.job.neuralnet))

    def __repr__(self) -> str:
        return self._describe(repr(self.job.name), _figures, "no metrics")

    def _describe(self, name: str, figures: Callable[[dict[str, Any]], str], without: str) -> str:
        """Word the result, with the last ``figures`` of each phase, or ``without`` if there are none."""
        rows = (row for row in self.history if row["phase"] != RECOVERY)
        ends = {row["phase"]: text for row in rows if (text := figures(row))}
        sentences = filter(None, (self.stopped, *self.remarks, self.unsaved))
        return f"<Result of {name} after {self.step} steps: {'; '.join([*(ends.values() or [without]), *sentences])}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{self.history._repr_html_()}"


def _figures(row: dict[str, Any]) -> str:
    return f"{row['phase']} " + ", ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in NOT_METRICS)
