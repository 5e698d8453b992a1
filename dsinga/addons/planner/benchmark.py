"""Measures an iteration on a cluster: computing, exchange with the servers, waiting for data."""

from __future__ import annotations

import logging
import resource
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from dsinga.addons.planner.profile import profile
from dsinga.base.errors import UserError
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection
from dsinga.cluster.run.driver import train
from dsinga.data import write_store
from dsinga.job import Job, LayerConf, LayerType, Phase
from dsinga.job.enums import CPU_PRECISIONS
from dsinga.loop.initial_state import RunOptions
from dsinga.net import input_layers
from dsinga.net.layer_classes import layer_class
from dsinga.ops import get_ops
from dsinga.reading.checked_job import check_job

_log = logging.getLogger(__name__)

# Iterations before the measured ones, in which kernels are compiled and rounds grow to their length.
WARM_UP_STEPS = 10


def measure(
    job: Job,
    client: Client,
    *,
    steps: int,
    synthetic: bool,
    roots: Sequence[str] = (),
    profiled: bool = False,
    precisions: bool = False,
    selection: WorkerSelection = ANYWHERE,
) -> dict[str, Any]:
    """Train a job for a warm-up and ``steps`` more iterations; return the median times of an iteration.

    The job is trained without tests and checkpoints, and on random records if ``synthetic``. Then one worker in this
    process measures each layer if ``profiled``, also in kFloat32 and kBF16 if ``precisions``.

    Returns a dict: ``ms_per_iteration`` and ``samples_per_second``. ``compute_ms`` and ``data_ms`` are the longest
    among partitions, ``exchange_ms`` the rest. ``crossing_mb`` passes between processes in an iteration of a worker
    group, ``peak_rss_mb`` is the largest process's. On request there are ``profile`` (see
    :func:`dsinga.addons.planner.profile.profile`) and ``precisions``, a profile for each.
    """
    job = without_tests(job, WARM_UP_STEPS + steps)
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as folder:
        if synthetic:
            job = with_synthetic_records(job, Path(folder))
        checked = check_job(job, roots)
        outcome = train(checked, client, SilentObserver(), RunOptions(roots=roots), selection=selection)
        figures: dict[str, Any] = {"profile": profile(checked, steps)} if profiled else {}
        if precisions and (lack := get_ops().lacks_bf16()):
            raise UserError(f"there is no kBF16 here to compare with: {lack}; leave --precision out")
        if precisions:
            figures["precisions"] = {
                precision.name: profile(checked.with_job(job.replace(precision=precision)), steps)
                for precision in CPU_PRECISIONS
            }
    iterations = outcome.timings[-steps:]
    median = {name: statistics.median(row[name] for row in iterations) for name in iterations[0]}
    return {
        "ms_per_iteration": 1e3 * median["total"],
        "samples_per_second": outcome.batchsize / median["total"],
        "compute_ms": 1e3 * median["compute"],
        "exchange_ms": 1e3 * median["exchange"],
        "data_ms": 1e3 * median["data"],
        "crossing_mb": 1e-6 * median["crossing"],
        "peak_rss_mb": max(client.run(_peak_rss_mb).values()),
        **figures,
    }


class SilentObserver:
    """An observer of a run that only logs waiting for Dask workers."""

    def waiting(self, sentence: str) -> None:
        """Log that the run waits, and why."""
        _log.info(sentence)

    def begin(self, step: int) -> None:
        """Ignore the begin of training."""

    def record(self, row: dict[str, Any]) -> None:
        """Ignore a row of metrics."""

    def progress(self, row: dict[str, Any]) -> None:
        """Ignore the progress of the run."""


def _peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def without_tests(job: Job, steps: int) -> Job:
    """Limit a job to ``steps`` iterations, without tests, extensions and checkpoints, initial ones included."""
    never = dict.fromkeys(("epochs", "test_freq", "validate_freq", "checkpoint_freq"), 0)
    return job.replace(train_steps=steps, **never, checkpoint_path=[], extension=[])


def with_synthetic_records(job: Job, folder: Path) -> Job:
    """Replace a job's stores by random records of the same shapes, written to ``folder``."""
    confs = [conf for layer in job.net.layer for conf in (layer.onehot_conf, layer.embedding_conf) if conf]
    synthetic = {
        layer.name: (
            _with_synthetic_text(layer, folder, min((conf.vocab_size for conf in confs if conf.vocab_size), default=2))
            if layer.type is LayerType.kCharRNN
            else _with_synthetic_images(layer, folder)
        )
        for layer in input_layers(job.net, Phase.kTrain)
    }
    layers = [
        synthetic[layer.name] if layer.name in synthetic and Phase.kTest not in layer.include else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def _with_synthetic_images(layer: LayerConf, folder: Path) -> LayerConf:
    conf = layer.store_conf
    if conf is None or not conf.shape:
        raise layer.error(f"layer {layer.name!r}: --synthetic needs the shape of the records in store_conf")
    rng = np.random.default_rng(0)
    count = 4 * sum(conf.batchsize)
    records = rng.integers(0, 256, (count, *conf.shape), dtype=np.uint8)
    path = folder / f"{layer.name}.zarr"
    write_store(str(path), [(records, rng.integers(0, 2, count))])
    conf = conf.replace(path=str(path), backend=None, mean_file=None, std_file=None)
    return layer.replace(store_conf=conf)


def _with_synthetic_text(layer: LayerConf, folder: Path, codes: int) -> LayerConf:
    conf: Any = layer.settings_of(layer_class(layer).Conf)  # type: ignore[arg-type]
    count = conf.batchsize * (4 * conf.unroll_len + 1)
    path = folder / f"{layer.name}.zarr"
    write_store(str(path), [(np.random.default_rng(0).integers(0, codes, count).astype(np.int32), None)])
    return layer.replace(char_rnn_conf=conf.replace(path=str(path), vocab_path=None))
