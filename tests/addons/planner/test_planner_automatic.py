"""``partition: auto``: the links of a cluster are measured, and the net is cut by what they cost."""

import logging
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

from dsinga.addons.planner.automatic import CALLS, LARGE, SMALL, link_of, machines_of, measure_links
from dsinga.addons.planner.link import ENDS, INSIDE, LOOPBACK, BarrierCost, Links
from dsinga.api import train, with_workers
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.placing.prepare import prepare_run
from dsinga.cutting.partitioned import LayerCut
from dsinga.job import Job, Phase, loads
from tests.support.small_job import JOB, assert_close

AUTO = JOB.replace("neuralnet {", "neuralnet { partition: auto").replace("train_steps: 50", "train_steps: 6")


@pytest.fixture(scope="module", autouse=True)
def rates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of measured rates. All tests share it, for their nets have the same layers."""
    folder = tmp_path_factory.mktemp("rates")
    with dask.config.set({"dsinga.cache": str(folder)}):
        yield folder


# Without a location, one worker would be the fastest for so small a net.
CUT = AUTO.replace('name: "drop" type', 'name: "drop" location: 1 type')


def automatic(stores: Path, text: str = AUTO) -> Job:
    return with_workers(loads(text, str(stores / "small.conf")), 2)


def test_between_workers_of_one_process_only_the_barrier_is_measured(threads: Client) -> None:
    links = measure_links(threads, list(available_workers(threads)))
    assert links[:4] == Links(INSIDE, ENDS, LOOPBACK)[:4]
    assert_sensible(links.barrier_inside)


@pytest.mark.process
def test_latency_and_bandwidth_of_messages_are_measured(processes: Client) -> None:
    links = measure_links(processes, list(available_workers(processes)))
    assert links.wire == LOOPBACK
    assert 1e-5 < links.ends.latency < 1e-1
    assert 1e7 < links.ends.bandwidth < 1e12
    assert_sensible(links.barrier_between)


@pytest.mark.process
def test_workers_of_one_machine_are_known_by_its_running_system(processes: Client) -> None:
    first, second = machines_of(processes, list(available_workers(processes))[:2])
    assert first == second != ""


def assert_sensible(cost: BarrierCost) -> None:
    assert 1e-5 < cost.short < cost.long < 10
    assert 0 <= cost.seconds(cost.short) < 1
    assert 0 <= cost.seconds(cost.long) < 1


def test_latency_and_bandwidth_follow_from_the_seconds_of_calls() -> None:
    """Latency is half of an empty call, bandwidth follows from larger calls; both are rounded to a power of two."""
    seconds = {0: 2.1e-3, SMALL: 2.2e-3, LARGE: 2.2e-3 + (LARGE - SMALL) / 1e9}
    assert set(seconds) == set(CALLS)
    assert link_of(seconds) == (2.0**-10, 2.0**30)


@pytest.mark.ci
def test_automatic_cuts_train_to_the_params_of_one_worker(
    stores: Path, processes: Client, caplog: pytest.LogCaptureFixture
) -> None:
    single = train(with_workers(automatic(stores), 1), processes, progress=False)
    with caplog.at_level(logging.INFO, logger="dsinga.addons.planner.automatic"):
        result = train(automatic(stores, CUT), processes, progress=False)
    assert_close(result.params, single.params, 1e-5)
    assert "partition: auto cuts the net over 2 workers so: " in caplog.text


def test_one_worker_trains_where_it_is_the_fastest(
    stores: Path, threads: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = BarrierCost(1e-3, 1e-2, 1.0, 1.0)  # so that waiting for each other decides
    slow = Links(INSIDE, ENDS, LOOPBACK, barrier_inside=second, barrier_between=second)
    monkeypatch.setattr("dsinga.addons.planner.automatic.measure_links", lambda *_: slow)
    single = train(with_workers(automatic(stores), 1), threads, progress=False)
    with caplog.at_level(logging.INFO, logger="dsinga.addons.planner.automatic"):
        result = train(automatic(stores), threads, progress=False)
    assert "partition: auto trains with one worker, which is faster than 2" in caplog.text
    for name, value in single.params.items():
        np.testing.assert_array_equal(result.params[name], value)


def cuts_of(job: Job, client: Client, stores: Path) -> dict[str, LayerCut]:
    """Return the cuts of the layers of a job's training net."""
    with prepare_run(job, client, [str(stores)]) as prepared:
        return dict(prepared.config.nets[Phase.kTrain].cuts)


def test_manual_partitioning_is_not_changed(stores: Path, threads: Client) -> None:
    text = AUTO.replace("partition: auto", "partition: manual")
    cuts = cuts_of(automatic(stores, text), threads, stores)
    assert {cut.dim for cut in cuts.values()} == {0}
