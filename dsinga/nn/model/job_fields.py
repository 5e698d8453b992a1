"""The further fields of a job that ``fit`` and ``job`` of a model take, for type checkers; see the job's schema."""

from __future__ import annotations

import os
from typing import Any, TypedDict


class JobFields(TypedDict, total=False):
    """The fields that both take; see :class:`dsinga.job.Job`."""

    disp_freq: int
    disp_after: int
    test_freq: int
    test_steps: int
    test_after: int
    validate_freq: int
    validate_steps: int
    validate_after: int
    checkpoint_freq: int
    checkpoint_after: int
    checkpoint_keep: int
    checkpoint_path: list[str | os.PathLike[str]]
    warmup_steps: int
    skip_bad_batches: bool
    micro_batches: int
    precision: Any
    reset_param_version: bool
    num_openblas_threads: int
    gpu: list[int]
    debug: bool
    step: int
    id: int
    train_one_batch: Any
    updater: Any
    extension: Any
    reinforcement: Any
    neuralnet: Any


class FitFields(JobFields, total=False):
    """The fields that ``fit`` takes, besides."""

    name: str
    cluster: Any
