"""Builds the net of a job without training it, to look at its layers and shapes."""

from __future__ import annotations

import os
from typing import Any

from dsinga.api.argument_types import typed
from dsinga.api.jobs_with_data import job_with_data, roots
from dsinga.job import Job
from dsinga.job.enums import find_phase
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import check_job


@typed()
def build_net(
    job: Job | str | os.PathLike[str],
    phase: str = "train",
    *,
    data: Any = None,
    data_root: str | os.PathLike[str] | None = None,
) -> NeuralNet:
    """Build a job's net, without training, to look at its layers, shapes and params.

    ``data`` are as for :func:`dsinga.train`.
    """
    net_phase = find_phase(phase)
    job = job_with_data(job, data, net_phase, data_root)
    return check_job(job, roots(job, data_root), [net_phase]).net(net_phase)
