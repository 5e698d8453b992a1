"""Tests during training over all records, each once, whole and cut: the figures are those of ``evaluate``."""

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga.api import evaluate, train
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job
from dsinga.job.reader import with_fields
from tests.support.small_job import assert_same


@pytest.fixture
def small(job: Job, stores: Path) -> Job:
    """The small job, which tests all 150 records, in two batches of 38 and two of 37."""
    return with_batches(job.replace(train_steps=2, test_freq=2, seed=3), [40])


def with_batches(job: Job, batchsize: list[int]) -> Job:
    """Return the small job with this batch size in all phases."""
    phases = ("kTrain", "kTest")
    return with_fields(job, {f"neuralnet.layer[data,{phase}].store_conf.batchsize": batchsize for phase in phases})


def of_phase(result, phase: str = "test") -> list[dict[str, float]]:
    """The metrics of the rows of a phase."""
    return [
        {name: row[name] for name in row if name not in ("step", "phase", "time")}
        for row in result.history.phase(phase)
    ]


@pytest.mark.parametrize(
    ("workers", "dim", "groups", "batchsize", "grain"),
    [(3, 0, 1, [50, 30, 20], "round"), (3, 1, 1, [40], "round"), (1, 0, 2, [40], "round"), (2, 0, 1, [40], "graph")],
)
def test_figures_are_those_of_evaluate(
    small: Job, stores: Path, threads: Client, workers: int, dim: int, groups: int, batchsize: list[int], grain: str
):
    cluster = ClusterConf(nworkers_per_group=workers, nworker_groups=groups)
    dims = {f"neuralnet.layer[{name}].partition_dim": dim for name in ("ip", "relu")}
    cut = with_batches(with_fields(small, dims).replace(cluster=cluster), batchsize)
    result = train(cut, threads, data_root=str(stores), progress=False, grain=grain)
    expected = evaluate(small, result.params, "test", threads, data_root=str(stores))
    _, last = of_phase(result)
    assert last == pytest.approx(expected, rel=1e-5)


def test_all_records_give_other_figures_than_some_of_them(small: Job, stores: Path, threads: Client):
    every = train(small, threads, data_root=str(stores), progress=False)
    some = train(small.replace(test_steps=1), threads, data_root=str(stores), progress=False)
    assert of_phase(every)[-1]["loss"] != pytest.approx(of_phase(some)[-1]["loss"], rel=1e-4)
    assert_same(some.params, every.params)


def test_an_extension_may_still_ask_for_some_batches(small: Job, stores: Path, threads: Client):
    from dsinga.extensions import EverySteps, Extension

    class Look(Extension):
        trigger = EverySteps(2)

        def run(self, loop):
            seen.append((loop.evaluate("test", 4), loop.evaluate("test"), loop.evaluate("test", 3)))

    seen: list = []
    train(small, threads, data_root=str(stores), progress=False, extensions=[Look()])
    (four, every, three), *_ = seen
    assert four["loss"] == pytest.approx(every["loss"], rel=0.05)  # batches of 38, the last of which begins anew
    assert four != every
    assert three != every


def test_fewer_test_records_than_a_batch(small: Job, stores: Path, threads: Client, tmp_path: Path):
    rng = np.random.default_rng(0)
    write_store(tmp_path / "few.zarr", [(rng.integers(0, 16, (5, 1, 8, 8), np.uint8), np.arange(5))])
    few = with_fields(small, {"neuralnet.layer[data,kTest].store_conf.path": str(tmp_path / "few.zarr")})
    few = few.replace(cluster=ClusterConf(nworkers_per_group=3))
    result = train(few, threads, data_root=str(stores), progress=False)
    expected = evaluate(few, result.params, "test", threads, data_root=str(stores))
    assert of_phase(result)[-1] == pytest.approx(expected, rel=1e-5)
