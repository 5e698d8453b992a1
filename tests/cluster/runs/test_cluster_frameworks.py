"""Every training framework trains: asynchronous groups, warm-up, server groups that keep in step."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga import cluster
from dsinga.api import evaluate, train
from dsinga.base.registry import register
from dsinga.job import AlgConf, ClusterConf, Job
from dsinga.training import bp
from tests.support.observers import Silent, train_observed
from tests.support.small_job import assert_same

# Worker groups, server groups, workers and servers of a group.
Figures = tuple[int, int, int, int]
FRAMEWORKS: dict[str, Figures] = {
    "Downpour": (3, 1, 1, 2),
    "Hogwild": (3, 3, 1, 1),
    "hybrid": (2, 1, 2, 2),
    "hybrid Hogwild": (2, 2, 2, 1),
}
downpour_and_hogwild = pytest.mark.parametrize(
    "figures",
    [pytest.param((3, 1, 1, 1), id="Downpour", marks=pytest.mark.ci), pytest.param((3, 3, 1, 1), id="Hogwild")],
)


def with_groups(job: Job, figures: Figures, **more: Any) -> Job:
    """Return the job, tested at its end, with so many worker groups, server groups, workers and servers a group."""
    names = ("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group")
    conf = ClusterConf(**dict(zip(names, figures, strict=True)), **more)
    return job.replace(cluster=conf, test_freq=1000, test_steps=2)


@pytest.fixture(scope="module")
def four_threads() -> Iterator[Client]:
    with cluster.connect(workers=4) as client:
        yield client


@pytest.mark.parametrize(
    "framework",
    ["Downpour", "hybrid Hogwild", *(pytest.param(name, marks=pytest.mark.ci) for name in ("Hogwild", "hybrid"))],
)
def test_a_framework_trains_to_the_accuracy_of_one_worker(job: Job, four_threads: Client, framework: str) -> None:
    result = train(with_groups(job, FRAMEWORKS[framework]), four_threads, progress=False)
    assert result.step == 50
    assert [row["step"] for row in result.history if row["phase"] == "train"] == [10, 20, 30, 40, 50]
    assert result.history.phase("test")[-1, "accuracy"] > 0.9  # one worker: 0.97


@downpour_and_hogwild
def test_the_last_test_and_checkpoint_use_the_returned_params(
    job: Job, four_threads: Client, tmp_path: Path, figures: Figures
) -> None:
    job.neuralnet.layer[1].store_conf.batchsize = [75]  # type: ignore[union-attr]
    job = with_groups(job, figures, sync_freq=5)
    result = train(job, four_threads, workspace=tmp_path, progress=False)
    last = result.history.phase("test")[-1]
    assert evaluate(job, result.params, client=four_threads)["loss"] == pytest.approx(last["loss"], rel=1e-5)
    resumed = train(job, four_threads, workspace=tmp_path, resume=True, progress=False)  # at the last step: no more
    assert_same(resumed.params, result.params)


class GroupSteps:
    """What the algorithm below records of a run. The test reads it, for all groups are threads of one process."""

    begun: dict[int, list[int]] = defaultdict(list)  # steps by worker group
    signal = threading.Event()


@pytest.fixture
def group_steps() -> type[GroupSteps]:
    GroupSteps.begun.clear()
    GroupSteps.signal.clear()
    return GroupSteps


def group_of(ctx: Any) -> int:
    """Return the worker group of a partition by its random numbers; the job's seed is 0."""
    return {group * 0x9E3779B97F4A7C15 % 2**64: group for group in range(4)}[ctx.seed]


@register("algorithm", "WarmUp")
def warm_up(net, values, records, ctx, push):
    """Record the steps of each group; no other group may begin before group 0 is at step 19."""
    GroupSteps.begun[group_of(ctx)].append(ctx.step)
    if ctx.step == 19:
        GroupSteps.signal.set()
    assert GroupSteps.signal.is_set() == (ctx.step >= 19)
    return bp(net, values, records, ctx, push)


@downpour_and_hogwild
def test_group_0_warms_up_alone(
    job: Job, four_threads: Client, group_steps: type[GroupSteps], figures: Figures
) -> None:
    job = with_groups(job, figures, staleness=5 if figures[1] == 1 else None)
    job = job.replace(warmup_steps=20, train_one_batch=AlgConf(user_alg="WarmUp"))
    result = train(job, four_threads, progress=False)
    assert group_steps.begun == {0: [*range(50)], 1: [*range(20, 50)], 2: [*range(20, 50)]}
    assert result.history.phase("test")[-1, "accuracy"] > 0.9


def test_a_run_may_be_all_warm_up(job: Job, four_threads: Client) -> None:
    result = train(with_groups(job, (2, 2, 1, 1)).replace(warmup_steps=50), four_threads, progress=False)
    assert result.history.phase("test")[-1, "accuracy"] > 0.9


def test_progress_counts_the_samples_of_all_groups(job: Job, four_threads: Client) -> None:
    rates: dict[int, float] = {0: 0.0}

    class Rates(Silent):
        def progress(self, row: dict[str, Any]) -> None:
            rates[row["step"]] = row["samples_per_second"]

    job = with_groups(job, (2, 1, 1, 1), staleness=0)
    outcome = train_observed(job, four_threads, Rates())
    totals = [timing["total"] for timing in outcome.timings]  # of the first group's iterations
    rounds = pairwise(sorted(rates))
    others = [rates[end] - 100 * (end - start) / sum(totals[start:end]) for start, end in rounds]
    assert min(others) > -1e-6  # each counts the first group's 100 rows a step,
    assert max(others) > 1  # and the second group's while it is on its way
    assert outcome.batchsize == 200
