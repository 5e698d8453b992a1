"""Measure dsinga on a case: ``python -m tests.benchmarks.ours CASE STEPS`` prints figures as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from dsinga import models
from dsinga.api import with_workers
from dsinga.cluster import connect
from dsinga.cluster.run.benchmark import measure
from dsinga.data import write_store
from dsinga.job import ChangeMethod, ClusterConf, Job, LRGenConf, Precision, load
from tests.benchmarks.cases import CASES, ON_SENTENCES
from tests.benchmarks.nets import WORDS, sentences
from tests.benchmarks.timing import BF16

DATASETS = "datasets"


def job(net: str, batch: int) -> Job:
    """Return the job of a net at a batch size."""
    match net:
        case "cifar10":
            return load(f"{DATASETS}/cifar10/convnet.conf", batch_is(batch))
        case "mnist":
            return load(f"{DATASETS}/mnist/convnet.conf", batch_is(batch))
        case "mlp":
            return load(f"{DATASETS}/mnist/mlp.conf", batch_is(batch))
    words = (WORDS, WORDS) if net in ON_SENTENCES else ()
    model_job = getattr(models, net)(*words, batchsize=batch)
    slow = LRGenConf(type=ChangeMethod.kFixed, base_lr=1e-6)  # random records would make some nets diverge
    return model_job.replace(updater=model_job.updater.replace(learning_rate=slow, clip_norm=0.0))


def batch_is(batch: int) -> list[str]:
    """Return an override of the training batch size."""
    return [f"neuralnet.layer[data,kTrain].store_conf.batchsize={batch}"]


def write_sentences(folder: Path, count: int) -> None:
    """Write the stores that a translator trains on."""
    source, target, labels = sentences(count)
    write_store(folder / "train" / "source.zarr", [(source, None)])
    write_store(folder / "train" / "target.zarr", [(target, labels)])


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the median milliseconds of an iteration of a case, and the peak megabytes of its largest process."""
    case = CASES[name]
    case_job = with_workers(job(case.net, case.batch * case.workers), case.workers)
    if BF16:
        case_job = case_job.replace(precision=Precision.kBF16)
    if case.workers > 1:
        case_job = case_job.replace(
            cluster=(case_job.cluster or ClusterConf()).replace(nservers_per_group=case.workers)
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        connect(workers=case.workers, separate_processes=case.workers > 1) as client,
    ):
        is_synthetic = case.net not in ON_SENTENCES
        if not is_synthetic:
            write_sentences(Path(folder), 4 * case.batch)
        figures = measure(case_job, client, steps=steps, synthetic=is_synthetic, roots=[folder])
    return {"ms": figures["ms_per_iteration"], "mb": figures["peak_rss_mb"]}


if __name__ == "__main__":
    print(json.dumps(turn(sys.argv[1], int(sys.argv[2]))))
