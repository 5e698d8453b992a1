"""The panel of sites: from events to its table, and from a run."""

from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dsinga
from dsinga import nn
from dsinga.addons.sites.panel import sites_of
from dsinga.cluster import run_events
from dsinga.cluster.dashboard.history import RunHistory
from dsinga.extensions import LoopView
from dsinga.job import loads
from tests.cluster.dashboard.test_dashboard_panels import history_of, panel
from tests.support.extension_runs import Acting
from tests.support.polling import wait_until
from tests.support.run_events import begin, round_of
from tests.support.small_job import JOB


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
