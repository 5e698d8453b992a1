"""A phase of a job, opened for forward passes: its net, its batches, and where passes are computed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga import cluster
from dsinga.api.clients import find_cluster
from dsinga.api.execution import select_workers
from dsinga.api.jobs_with_data import job_with_data, patience_of, roots
from dsinga.api.result import Result
from dsinga.api.workspaces import trained_params
from dsinga.base.error_frames import cleared_frames
from dsinga.base.param_arrays import ParamArrays
from dsinga.job import Job, Phase
from dsinga.job.enums import find_phase
from dsinga.net import NeuralNet
from dsinga.passes import inference
from dsinga.passes.evaluation import Forward
from dsinga.reading.batch_reader import BatchReader


class OpenPhase(NamedTuple):
    """What is computed of a phase, and where.

    Attributes:
        job: the job, with the data of the call.
        phase: the phase.
        params: the params, by name.
        roots: the folders where relative paths are looked up.
        net: the net of the phase.
        reader: reads its batches.
        forward: its forward passes, in threads of this process or on a cluster.
        client: a client of that cluster, None for threads of this process.
        selection: the Dask workers that may compute, None for threads of this process.
    """

    job: Job
    phase: Phase
    params: ParamArrays
    roots: Sequence[str]
    net: NeuralNet
    reader: BatchReader
    forward: Forward
    client: Any
    selection: cluster.WorkerSelection | None


@contextlib.contextmanager
def open_phase(
    job: Job | str | os.PathLike[str],
    params: ParamArrays | Result | str | os.PathLike[str] | None,
    phase: str,
    client: Any,
    data: Any,
    data_root: str | None,
    resources: Mapping[str, float] | None,
    hosts: Sequence[str],
    layer: str | None = None,
) -> Iterator[OpenPhase]:
    """Yield a phase of a job. Arguments are those of :func:`dsinga.predict`; without a ``layer`` the net has all.

    Errors that leave the block keep no nets and params in their tracebacks. Raises UserError for bad input.
    """
    job_phase = find_phase(phase)
    job = job_with_data(job, data, job_phase, data_root, params)
    folders = roots(job, data_root)
    trained = trained_params(job, params, folders)
    source = find_cluster(client, waits=True)
    with contextlib.ExitStack() as stack:
        if source.computes_here(asks_for_cluster=bool(resources or hosts)):
            selection, opened, forward = None, None, inference.forward_in_threads(job, trained)
        else:
            selection = select_workers(resources, hosts)
            opened = stack.enter_context(source.open(patience=patience_of(job)))
            forward = cluster.forward_on_cluster(job, opened, trained, selection)
        stack.enter_context(cleared_frames("dsinga"))
        net, reader = inference.open_phase(job, trained, job_phase, folders, layer)
        yield OpenPhase(job, job_phase, trained, folders, net, reader, forward, opened, selection)
