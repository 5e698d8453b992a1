"""``partition: auto``: links measured on a cluster, cuts chosen for it, and a run with them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from distributed import Client

from dsinga.api import train, with_workers
from dsinga.cluster.link_probe import CALLS, LARGE, SMALL, link_of, measure_links
from dsinga.cluster.placement import workers_at_hand
from dsinga.cluster.prepare import prepare_run
from dsinga.job import Job, Phase, loads
from dsinga.planner.barrier import BarrierCost
from dsinga.planner.link import ENDS, INSIDE, LOOPBACK, Links
from tests.support.small_job import JOB, assert_close

AUTO = JOB.replace("neuralnet {", "neuralnet { partition: auto").replace("train_steps: 50", "train_steps: 6")


@pytest.fixture(scope="module", autouse=True)
def rates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for what is measured: once for all tests, whose nets have the same layers."""
    folder = tmp_path_factory.mktemp("rates")
    with dask.config.set({"dsinga.cache": str(folder)}):
        yield folder


def automatic(stores: Path, text: str = AUTO) -> Job:
    return with_workers(loads(text, str(stores / "small.conf")), 2)


def test_between_workers_of_one_process_only_the_barrier_is_measured(threads: Client) -> None:
    links = measure_links(threads, list(workers_at_hand(threads)))
    assert links[:4] == Links(INSIDE, ENDS, LOOPBACK)[:4]
    assert_sensible(links.barrier_inside)


@pytest.mark.process
def test_measures_what_a_message_takes(processes: Client) -> None:
    links = measure_links(processes, list(workers_at_hand(processes)))
    assert links.wire == LOOPBACK
    assert 1e-5 < links.ends.latency < 1e-1
    assert 1e7 < links.ends.bandwidth < 1e12
    assert_sensible(links.barrier_between)


def assert_sensible(cost: BarrierCost) -> None:
    assert 1e-5 < cost.short < cost.long < 10
    assert 0 <= cost.seconds(cost.short) < 1
    assert 0 <= cost.seconds(cost.long) < 1


def test_a_link_is_told_by_its_calls() -> None:
    """Half of an empty call, and what a byte more takes; to one power of two."""
    seconds = {0: 2.1e-3, SMALL: 2.2e-3, LARGE: 2.2e-3 + (LARGE - SMALL) / 1e9}
    assert set(seconds) == set(CALLS)
    assert link_of(seconds) == (2.0**-10, 2.0**30)


def test_trains_as_one_worker_does(stores: Path, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    alone = train(with_workers(automatic(stores), 1), client, progress=False)
    with caplog.at_level(logging.INFO, logger="dsinga.cluster.automatic"):
        together = train(automatic(stores), client, progress=False)
    assert_close(together.params, alone.params, 1e-5)
    assert "partition: auto cuts the net over 2 workers so: " in caplog.text


def test_the_same_rates_choose_the_same(
    stores: Path, threads: Client, rates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = measure_links(threads, list(workers_at_hand(threads)))  # anew they would be others, on a busy machine
    monkeypatch.setattr("dsinga.cluster.automatic.measure_links", lambda *_: links)
    job = automatic(stores)
    one, two = (prepare_run(job, threads, [str(stores)]).config.nets[Phase.kTrain].cuts for _ in range(2))
    assert one == two
    assert [file.suffix for file in rates.iterdir()] == [".json"]


def test_layers_that_say_their_own_keep_it(stores: Path, threads: Client) -> None:
    text = AUTO.replace('name: "ip" type', 'name: "ip" partition_dim: 1 type').replace(
        'name: "drop" type', 'name: "drop" location: 1 type'
    )
    cuts = prepare_run(automatic(stores, text), threads, [str(stores)]).config.nets[Phase.kTrain].cuts
    assert cuts["ip"].dim == 1
    assert (cuts["drop"].dim, cuts["drop"].location) == (-1, 1)


def test_manual_partitioning_is_left_alone(stores: Path, threads: Client) -> None:
    text = AUTO.replace("partition: auto", "partition: manual")
    cuts = prepare_run(automatic(stores, text), threads, [str(stores)]).config.nets[Phase.kTrain].cuts
    assert {cut.dim for cut in cuts.values()} == {0}
