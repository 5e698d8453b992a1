"""Keeps running statistics of batch normalisation when training starts from trained params."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dsinga.base.errors import UserError
from dsinga.checkpoint import latest, read_all_params
from dsinga.checkpoint.metadata import read_metadata
from dsinga.job import Job, LayerConf, LayerType, loads
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import CheckedJob

MANY = 10**9  # steps, where nobody knows how many there were: then a batch has no more weight than its momentum
ROLE, PLACE = "mean", 2  # of the running means among the params of a layer


def with_learnt_statistics(
    checked: CheckedJob, params: Mapping[str, np.ndarray] | None, workspace: Path | None, resume: bool | Path
) -> CheckedJob:
    """Keep the running statistics in trained params, which the first batch would otherwise replace.

    They are weighted by the steps that learnt them, ``earlier_steps`` of the returned job's layers.
    """
    job = checked.job
    layers = normalised(job)
    if not layers or job.experience is not None:
        return checked
    if resume:
        folder = resume if isinstance(resume, Path) else latest((workspace or Path()) / "checkpoint")
        return checked.with_job(with_steps(job, _steps_of_checkpoint(folder))) if folder else checked
    values = read_all_params(job.checkpoint_path, checked.roots) | dict(params or {})
    return checked.with_job(weighed(job, values))


def weighed(job: Job, params: Mapping[str, np.ndarray], unsaid: int = MANY) -> Job:
    """Let a job's running statistics count as learnt from earlier batches, unless they are initial values.

    ``unsaid`` is the number of earlier batches of layers that say 0.
    """
    layers = normalised(job)
    learnt = {conf.name: bool(np.any(params.get(_mean_name(conf), 0))) for conf in layers}
    known = {conf.name: conf.bm_conf.earlier_steps for conf in layers if conf.bm_conf is not None}
    return with_steps(job, {name: (known.get(name) or unsaid) if learnt[name] else 0 for name in learnt})


def normalised(job: Job) -> list[LayerConf]:
    """Return the layers of a job that have running statistics, such as batch normalisation."""
    return [conf for conf in job.neuralnet.layer if conf.type in (LayerType.kBM, LayerType.kCudnnBM)]


def earlier_steps(net: NeuralNet) -> int:
    """Return how many batches a net's running statistics have seen."""
    settings = [node.layer.conf.bm_conf for node in net.nodes]
    return max((conf.earlier_steps for conf in settings if conf is not None), default=0)


def with_steps(job: Job, steps: Mapping[str, int]) -> Job:
    """Return the job with the number of batches that each layer's running statistics have seen."""

    def changed(conf: LayerConf) -> LayerConf:
        if conf.name not in steps or steps[conf.name] == (conf.bm_conf.earlier_steps if conf.bm_conf else 0):
            return conf
        number = {"earlier_steps": steps[conf.name]}
        return conf.replace(bm_conf=conf.bm_conf.replace(**number) if conf.bm_conf else number)

    layers = [changed(conf) for conf in job.neuralnet.layer]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def _mean_name(conf: LayerConf) -> str:
    named = conf.param[PLACE] if len(conf.param) > PLACE else None
    return (named.share_from or named.name if named else "") or f"{conf.name}_{ROLE}"


def _steps_of_checkpoint(folder: Path) -> dict[str, int]:
    try:
        layers = normalised(loads(read_metadata(folder).meta["job"]))
    except (UserError, LookupError):  # the run says what is wrong with the checkpoint
        return {}
    return {conf.name: conf.bm_conf.earlier_steps if conf.bm_conf else 0 for conf in layers}
