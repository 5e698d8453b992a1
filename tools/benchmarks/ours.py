"""Measure dsinga on a case: ``python -m tools.benchmarks.ours CASE STEPS`` prints figures as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dsinga import models
from dsinga.addons.planner.benchmark import SilentObserver, measure, with_synthetic_records, without_tests
from dsinga.api import with_workers
from dsinga.base.errors import UserError
from dsinga.cluster import connect
from dsinga.data import write_store
from dsinga.job import ChangeMethod, ClusterConf, Job, LayerType, LRGenConf, Precision, load
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.local_run import continue_locally
from dsinga.passes.training_step import TrainingStep
from tools.benchmarks.cases import CASES, ON_SENTENCES
from tools.benchmarks.nets import WORDS, sentences
from tools.benchmarks.timing import BF16, WARM_UP, figures_of_turn

DATASETS = "datasets"
MOST_STEPS = 1_000_000  # of a run that ends when no turn is asked for


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


def with_rows_statistics(case_job: Job) -> Job:
    """Return a job whose batch normalisation takes the statistics of each worker's rows."""
    layers = [
        layer.replace(bm_conf={"synchronized": False}) if layer.type is LayerType.kBM else layer
        for layer in case_job.net.layer
    ]
    return case_job.replace(neuralnet=case_job.net.replace(layer=layers))


def write_sentences(folder: Path, count: int) -> None:
    """Write the stores that a translator trains on."""
    source, target, labels = sentences(count)
    write_store(folder / "train" / "source.zarr", [(source, None)])
    write_store(folder / "train" / "target.zarr", [(target, labels)])


class Ended(UserError):
    """No further turn is asked for."""


class Turns:
    """Lets the steps of a run begin turn by turn, and prints the figures of each turn in a line of JSON."""

    def __init__(self, steps: int):
        self.steps, self.begun, self.milliseconds = steps, 0, list[float]()
        self.before = time.perf_counter()

    def begin_step(self) -> None:
        """Note the time of the step before; wait at the end of a turn for a line that asks for another.

        Raises Ended where there is none.
        """
        self.milliseconds.append(1e3 * (time.perf_counter() - self.before))
        self.begun += 1
        if self.begun == WARM_UP + 2:  # what has been noted are the warm-up and what was before it
            self.milliseconds = self.milliseconds[-1:]
        if self.begun > WARM_UP + 1 and len(self.milliseconds) == self.steps:
            print(json.dumps(figures_of_turn(self.milliseconds)), flush=True)
            if not sys.stdin.readline():
                raise Ended("no further turn is asked for")
            self.milliseconds, self.begun = [], WARM_UP
        self.before = time.perf_counter()


def train(name: str, steps: int) -> None:
    """Print the median milliseconds of an iteration of a case and the peak megabytes of its largest process.

    One worker trains turn by turn, as long as lines of the standard input ask for turns.
    """
    if CASES[name].workers > 1:
        print(json.dumps(turn(name, steps)))
        return
    turns, run = Turns(steps), TrainingStep.run

    def run_in_turn(*arguments: Any) -> Any:
        turns.begin_step()
        return run(*arguments)

    with contextlib.suppress(Ended), patch.object(TrainingStep, "run", run_in_turn):
        turn(name, MOST_STEPS)


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the median milliseconds of an iteration of a case, and the peak megabytes of its largest process."""
    case = CASES[name]
    case_job = job(case.net, case.batch * case.workers)
    if BF16:
        case_job = case_job.replace(precision=Precision.kBF16)
    is_synthetic = case.net not in ON_SENTENCES
    with tempfile.TemporaryDirectory() as folder:
        if not is_synthetic:
            write_sentences(Path(folder), 4 * case.batch)
        if case.workers == 1:
            return train_here(case_job, steps, is_synthetic, Path(folder))
        case_job = with_workers(case_job if case.synchronized else with_rows_statistics(case_job), case.workers)
        case_job = case_job.replace(
            cluster=(case_job.cluster or ClusterConf()).replace(nservers_per_group=case.workers)
        )
        with connect(workers=case.workers, separate_processes=True) as client:
            figures = measure(case_job, client, steps=steps, synthetic=is_synthetic, roots=[folder])
    return {"ms": figures["ms_per_iteration"], "mb": figures["peak_rss_mb"]}


def train_here(case_job: Job, steps: int, synthetic: bool, folder: Path) -> dict[str, float]:
    """Train in this process, as ``dsinga.train`` does with one worker; return the figures as :func:`turn` does."""
    case_job = without_tests(case_job, WARM_UP + steps)
    if synthetic:
        case_job = with_synthetic_records(case_job, folder)
    outcome = continue_locally(case_job, SilentObserver(), RunOptions(roots=[str(folder)]))
    return figures_of_turn([1e3 * row["total"] for row in outcome.timings[-steps:]])


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
