"""Server groups that average their params on a cluster: synchronous ones with the same bits, resumed or recovered."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dsinga
from dsinga import nn
from dsinga.addons.sites.panel import sites_of
from dsinga.api import train
from dsinga.checkpoint import read_checkpoint
from dsinga.cluster import connect, run_events
from dsinga.cluster.dashboard.history import RunHistory
from dsinga.extensions import LoopView
from dsinga.job import ClusterConf, Job, UpdaterConf, loads
from tests.cluster.dashboard.test_dashboard_panels import history_of, panel
from tests.support.extension_runs import Acting
from tests.support.killed_run import train_with_a_killed_process
from tests.support.polling import wait_until
from tests.support.run_events import begin, round_of
from tests.support.small_job import JOB, assert_same


def mean(groups: int, period: int, **fields: Any) -> ClusterConf:
    conf = {"nworker_groups": groups, "nserver_groups": groups, "sync_freq": period, "sync_method": "kMean"}
    return ClusterConf(**conf | fields)


ADAMW = UpdaterConf(type="kAdamW", learning_rate={"type": "kFixed", "base_lr": 0.01})


@pytest.mark.ci
@pytest.mark.process
def test_two_groups_give_the_same_bits_in_threads_processes_graphs_and_when_resumed(
    job: Job, threads: Client, processes: Client, tmp_path: Path
) -> None:
    conf = mean(2, 5, mean_conf={"compression": "kInt4", "fragments": 2, "delay": 2, "mixing": 0.5})
    job = job.replace(cluster=conf, updater=ADAMW, train_steps=18, checkpoint_freq=8, test_freq=9)
    expected = train(job, threads, workspace=tmp_path / "run", progress=False)
    assert_same(train(job, processes, progress=False).params, expected.params)
    assert_same(train(job, threads, grain="graph", progress=False).params, expected.params)
    star = job.replace(cluster=conf.replace(sync_topology="kStar"))
    assert_same(train(star, threads, progress=False).params, expected.params)
    for step in (8, 16):  # where the changes of one of the fragments are in flight
        again = train(job, processes, resume=tmp_path / f"run/checkpoint/step{step}", progress=False)
        assert_same(again.params, expected.params)
    state = read_checkpoint(tmp_path / "run/checkpoint/step8").state
    slots = {"mean", "squares", "outer.residual", "outer.in_flight"}
    further = {f"group1.{slot}" for slot in slots | {"value"}}
    assert state["w2"].keys() == slots | {"outer.value", "outer.history"} | further
    alone = job.replace(cluster=None)
    assert train(alone, threads, resume=tmp_path / "run/checkpoint/step8", progress=False).step == 18


@pytest.mark.parametrize(
    "average", [{"decay": 0.6}, pytest.param({"decay": 0.9, "warmup": True, "every": 2}, marks=pytest.mark.ci)]
)
def test_moving_averages_are_those_of_the_outer_params(
    job: Job, threads: Client, tmp_path: Path, average: dict[str, Any]
) -> None:
    """By runs without averages, which end with an outer step: after 5, 10, 15 steps, and at the end after 18."""
    job = job.replace(cluster=mean(2, 5), updater=ADAMW, train_steps=18)
    averaged = job.replace(updater=ADAMW.replace(ema_conf=average), checkpoint_freq=8)
    result = train(averaged, threads, workspace=tmp_path, progress=False)
    every, decay, expected = average.get("every", 1), average["decay"], {}
    for number, steps in enumerate((5, 10, 15, 18), 1):
        outer = train(job.replace(train_steps=steps), threads, progress=False).params
        if number % every == 0:
            count = number // every - 1
            share = min(decay, 1 - (1 + count) ** (-2 / 3)) if "warmup" in average else decay
            share = share if count else 0.0
            expected = {name: share * expected.get(name, 0) + (1 - share) * outer[name] for name in outer}
    trained = {"w1", "b1", "w2", "b2"}
    for name in trained:
        np.testing.assert_allclose(result.params[name], expected[name], atol=1e-6)
    again = train(averaged, threads, resume=tmp_path / "checkpoint/step8", progress=False)
    assert_same(again.params, result.params)


def test_a_run_that_is_cut_goes_on_with_the_same_bits(job: Job, threads: Client, tmp_path: Path) -> None:
    job = job.replace(cluster=mean(3, 4, mean_conf={"delay": 3}), updater=ADAMW, train_steps=14)
    expected = train(job, threads, progress=False)
    cut = Acting(100, lambda loop: loop.stop("enough for now", resumable=True), after=6)
    assert train(job, threads, workspace=tmp_path, extensions=[cut], progress=False).step < 14
    assert_same(train(job, threads, workspace=tmp_path, resume=True, progress=False).params, expected.params)


@pytest.mark.ci
@pytest.mark.process
def test_a_killed_process_changes_no_bit(job: Job) -> None:
    conf = mean(2, 7, nworkers_per_group=2, mean_conf={"delay": 3})
    job = job.replace(cluster=conf, updater=ADAMW, train_steps=150, disp_freq=10)
    train_with_a_killed_process(job, 4, 3)


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_the_mean_of_groups_of_several_workers_is_that_of_groups_of_one(job: Job, asynchronous: bool) -> None:
    job = job.replace(train_steps=12, test_freq=12)
    conf = mean(2, 4, mean_conf={"asynchronous": asynchronous})
    with connect(workers=4) as client:
        ones = train(job.replace(cluster=conf), client, progress=False)
        pairs = train(job.replace(cluster=conf.replace(nworkers_per_group=2)), client, progress=False)
    for name, value in ones.params.items() if not asynchronous else ():
        np.testing.assert_allclose(pairs.params[name], value, atol=1e-5)
    assert pairs.history.phase("test")[-1, "loss"] < pairs.history.phase("test")[0, "loss"]


# The panel of sites: from events to its table, and from a run.
def test_the_sites_of_a_run_and_the_use_of_their_links() -> None:
    """Site 0 has two servers; its busiest link was in use for 0.25 of the second between the events."""
    first = round_of("a", sites=[(0, 10, 2, 100, 1.0), (0, 11, 3, 50, 1.5), (1, 9, 1, 70, 0.5)])
    second = round_of("a", sites=[(0, 20, 2, 300, 1.75), (0, 20, 2, 150, 1.75), (1, 19, 1, 70, 0.5)])
    drawn = panel("sites", history_of(begin("a"), first, second))
    assert drawn.source.data == {
        "run": ["mlp"] * 2, "site": ["0", "1"], "step": [20, 19], "age": [2, 1], "sent": [450, 70],
        "share": [0.25, 0.0],
    }  # fmt: skip
    assert "server groups that average their params" in panel("sites", history_of(begin("a"))).root.children[0].text


def test_sites_tell_their_progress(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "EVENT_SECONDS", 0.0)
    seen: list[dict[int, Any]] = []

    def wait_for_figures(loop: LoopView) -> None:
        def sites_at_18() -> dict[int, Any] | None:
            loop.record("test", {"probe": 1.0})  # with which servers are asked
            runs = client.cluster.scheduler.plugins[RunHistory.name].runs
            sites = sites_of(next(iter(runs.values()))) if runs else {}
            return sites if {site.step for site in sites.values()} == {18} else None

        wait_until(lambda: bool(seen) or bool(sites := sites_at_18()) and (seen.append(sites) or True))

    job = loads(JOB, str(stores / "small.conf")).replace(train_steps=20)
    probe = Acting(18, wait_for_figures)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        result = dsinga.train(
            job.replace(cluster=nn.Cluster(sites=2, sync_freq=5)), client, progress=False, extensions=[probe]
        )
    weights = sum(value.nbytes for value in result.params.values())
    for group in (0, 1):
        assert (seen[0][group].age, seen[0][group].sent) == (3, 3 * weights)
        assert 0 <= seen[0][group].share <= 1
