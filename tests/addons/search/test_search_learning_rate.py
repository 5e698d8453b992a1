"""Searching a learning rate: what it finds, and that it leaves nothing behind."""

import asyncio
import math
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.signal
from click.testing import CliRunner
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

import dsinga
from dsinga import nn
from dsinga.addons.search.learning_rate import SMOOTHING, RateSearch, has_diverged, smooth
from dsinga.api import roots, train
from dsinga.commands.cli import main_group
from dsinga.data import open_records, write_store
from dsinga.job import ClusterConf, Job, LRGenConf, to_text
from tests.cluster.runs.test_cluster_rbm import job_of, machine
from tests.support.async_client import async_client
from tests.support.refusals import refused
from tests.support.small_job import linear, with_topology


@pytest.fixture
def job(short: Job) -> Job:
    """The small job on one worker: alone it would take all three."""
    return short


def search(job: Job, client: Client, **more) -> RateSearch:
    return dsinga.find_learning_rate(job, client=client, progress=False, **more)


def test_a_job_with_one_cycle_is_searched_with_the_momentum_of_its_beginning(job: Job) -> None:
    cycle = {"type": "kOneCycle", "onecycle_conf": {"change_freq": 9}}
    moving = {"one_cycle": True, "base_momentum": 0.9, "final_momentum": 0.8}
    updater = job.updater.replace(momentum=0.9)
    in_cycle = updater.replace(momentum=0.0, momentum_conf=moving, learning_rate=LRGenConf(**cycle))
    searches = [
        dsinga.find_learning_rate(job.replace(updater=conf), progress=False, steps=10) for conf in (in_cycle, updater)
    ]
    assert searches[0].losses == searches[1].losses


def test_the_losses_are_those_of_training_with_the_rates(job: Job, threads: Client) -> None:
    job = with_topology(job, 2)
    in_epochs = job.replace(train_steps=0, epochs=1)  # neither these nor the job's train_steps count
    found = search(in_epochs, threads, low=1e-3, high=0.1, steps=20)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-3, 0.1, 20))
    conf = LRGenConf(type="kFixedStep", fixedstep_conf={"step": list(range(20)), "step_lr": list(found.rates)})
    expected = train(
        job.replace(updater=job.updater.replace(learning_rate=conf), train_steps=20, disp_freq=1),
        threads,
        progress=False,
    )
    assert list(found.losses) == expected.history[:, "loss"]
    assert found.end == "all 20 rates were tried"


def test_nothing_is_left_behind(job: Job, threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = job.replace(
        cluster=ClusterConf(workspace=str(tmp_path / "work")), checkpoint_freq=1, test_freq=1,
        extension=[{"type": "kCSV"}],
    )  # fmt: skip
    before = job.replace()
    assert len(search(job, threads, steps=10).losses) == 10
    assert job == before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("high", [1e4, 1e30])
def test_a_loss_that_diverges_ends_the_search(job: Job, threads: Client, high: float) -> None:
    found = search(job, threads, high=high)
    assert 10 < len(found.losses) == len(found.rates) < 100
    assert all(map(math.isfinite, found.losses))
    assert "diverges" in found.end or "is not finite" in found.end
    assert found.suggestion is not None


def test_data_may_be_given(job: Job, threads: Client) -> None:
    records = open_records("test.zarr", roots=roots(job, None))
    given = search(job, threads, data={"train": records}, steps=10)
    assert given.losses != search(job, threads, steps=10).losses


@pytest.mark.parametrize(("low", "high", "steps"), [(0, 1, 100), (1, 1, 100), (0.1, math.inf, 100), (0.1, 1, 9)])
def test_rates_must_rise_from_above_0(job: Job, threads: Client, low: float, high: float, steps: int) -> None:
    refused(lambda: search(job, threads, low=low, high=high, steps=steps), "0 < low < high", "at least 10")


def test_of_several_groups_one_trains(job: Job, threads: Client) -> None:
    groups = ClusterConf(nworker_groups=2, nserver_groups=2, staleness=3, sync_edge=[{"group": [0, 1]}])
    alone = search(with_topology(job, 1), threads, steps=10)
    assert search(job.replace(cluster=groups), threads, steps=10).losses == alone.losses


def test_of_several_sites_one_trains_on_its_records(job: Job, threads: Client) -> None:
    alone, (first, *others) = with_topology(job, 1), job.neuralnet.layer
    assert first.store_conf is not None
    store = first.store_conf.replace(path="", site_path=[first.store_conf.path, "none.zarr"])
    cluster = ClusterConf(nworker_groups=2, nserver_groups=2, sync_freq=2, sync_method="kMean", mean_conf={"delay": 1})
    net = job.neuralnet.replace(layer=[first.replace(store_conf=store), *others])
    found = search(job.replace(cluster=cluster, neuralnet=net), threads, steps=10)
    assert found.losses == search(alone, threads, steps=10).losses


def test_machines_are_judged_by_their_reconstruction_error(stores: Path, threads: Client) -> None:
    found = search(job_of(stores, machine(1, "data", 64)), threads, steps=30)
    assert found.suggestion is not None
    assert min(found.losses) < 0.9 * found.losses[0]


def test_the_command_names_no_base_lr_that_a_sequence_of_schedules_lacks(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    write_store(tmp_path / "x.zarr", [(x, x[:, :3].argmax(axis=1))])
    job = linear(f"path={tmp_path / 'x.zarr'}")
    rates = [{"type": "kFixed", "base_lr": 0.1}, {"type": "kFixed", "base_lr": 0.01}]
    sequence = {"type": "kSequential", "sequential_conf": {"schedule": rates, "boundary": [4]}}
    for rate, has_command in ((job.updater.learning_rate, True), (LRGenConf(**sequence), False)):
        conf = tmp_path / "job.conf"
        conf.write_text(to_text(job.replace(updater=job.updater.replace(learning_rate=rate))))
        output = CliRunner().invoke(main_group, ["find-lr", str(conf), "--steps", "40"]).output
        assert "the suggested learning rate is" in output
        assert ("base_lr=" in output) == has_command


def test_an_asynchronous_client_gets_an_awaitable(job: Job) -> None:
    async def use() -> RateSearch:
        async with async_client() as client:
            return await dsinga.find_learning_rate(job, client=client, steps=10, progress=False)

    assert len(asyncio.run(asyncio.wait_for(use(), 100)).rates) == 10


# Suggestions and pictures of a search for a learning rate, from given losses.
RATES = [10 ** (-6 + 0.07 * step) for step in range(100)]  # 1e-6 to about 8.5


def valley(lowest: int) -> RateSearch:
    """Return a search whose loss falls linearly up to a step and then rises ten times as fast."""
    losses = [10 - 0.1 * min(step, lowest) + max(step - lowest, 0) for step in range(100)]
    return RateSearch(RATES, losses)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=50))
def test_smoothing_is_an_exponential_mean_corrected_for_its_start(losses: list[float]) -> None:
    filtered = scipy.signal.lfilter([1 - SMOOTHING], [1, -SMOOTHING], losses)
    expected = filtered / (1 - SMOOTHING ** np.arange(1, len(losses) + 1))
    np.testing.assert_allclose(smooth(losses), expected, atol=1e-9)


@pytest.mark.parametrize("lowest", [20, 50, 80])
def test_the_suggestion_is_a_tenth_of_the_rate_with_the_lowest_loss(lowest: int) -> None:
    search = valley(lowest)
    assert lowest <= search.lowest <= lowest + 5, "smoothing delays it a little"
    assert search.suggestion == pytest.approx(RATES[search.lowest] / 10)
    assert f"a tenth of {RATES[search.lowest]:.3g}, where the loss was lowest" in repr(search)


def test_a_loss_that_only_rises_suggests_nothing() -> None:
    search = RateSearch(RATES, [1 + step for step in range(100)])
    assert search.suggestion is None
    assert "no learning rate from 1e-06 to 8.51 lowered the loss" in repr(search)
    assert "suggestion" not in search.draw()


def test_a_loss_that_falls_to_the_end_says_so() -> None:
    search = RateSearch(RATES, [100 - step for step in range(100)])
    assert search.suggestion == pytest.approx(RATES[-1] / 10)
    assert "still falling, try higher rates" in repr(search)


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([], False),
        ([1.0] * 20, False),
        ([1.0] * 20 + [20] * 3, True),
        ([1.0] * 20 + [1.5] * 20, False),
        ([1.0, math.nan], True),
        ([1.0, math.inf], True),
        ([-5.0] * 20 + [-4.9] * 5, False),
        ([-5.0] * 20 + [100] * 5, True),
    ],
)
def test_a_loss_diverges_when_it_is_four_times_its_lowest_or_not_finite(losses: list[float], diverged: bool) -> None:
    assert has_diverged(losses) == diverged


def test_the_picture_has_powers_of_ten_and_the_suggestion() -> None:
    search = valley(60)
    texts = [
        element.text or "" for element in ElementTree.fromstring(search.draw()).iter() if element.tag.endswith("text")
    ]
    assert {"1e-6", "1e-4", "0.01", "learning rate", f"suggestion {search.suggestion:.2g}"} <= set(texts)
    assert search.draw() in search._repr_html_()


def test_a_loss_that_explodes_does_not_flatten_the_picture() -> None:
    search = RateSearch(RATES, [10 - step / 10 if step < 90 else 1e9 for step in range(100)])
    (axes,) = search.figure().axes
    assert axes.get_ylim()[1] < 30


# The learning rate of a model of nn, from its records.
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def model():
    return nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])


def test_a_rate_is_found_for_a_model():
    made = model()
    made.compile("adam", "sparse_categorical_crossentropy")
    search = dsinga.find_learning_rate(made, X, Y, steps=20, batch_size=8, progress=False)
    assert len(search.rates) == 20
    made.fit(X, Y, progress=False)


MISTAKES = {
    "without records": (lambda: dsinga.find_learning_rate(model()), r"\(model, x, y\)"),
    "before compile": (lambda: dsinga.find_learning_rate(model(), X, Y), "compile"),
    "of a job": (lambda: dsinga.find_learning_rate(Job(), X, Y), "data="),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_what_to_write(name):
    refused(*MISTAKES[name])
