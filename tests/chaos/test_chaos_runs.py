"""Runs whose processes are lost, stopped or retired go on, and give the bits of an undisturbed run.

``python -m tools.chaos`` does the same at a hundred random moments.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga.api import Result, train
from tests.support.small_disk import files_of_at_most
from tools.chaos.campaign import SIGNALS, bring_back, judge, run_case
from tools.chaos.cases import Case
from tools.chaos.faults import cause, process_cluster, wait_for_return
from tools.chaos.topologies import PLAN, TOPOLOGIES, job_of

pytestmark = [pytest.mark.slow, pytest.mark.process]
NAME, STEPS, WORKERS = "data-2", 400, 2


@pytest.fixture(scope="module")
def expected(stores: Path, threads: Client) -> Result:
    """An undisturbed run."""
    return train(job_of(TOPOLOGIES[NAME], stores, stores / PLAN, STEPS), threads, progress=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with process_cluster(WORKERS) as client:
        yield client


def train_disturbed(client: Client, stores: Path, fault: Callable[[], object], **options: Any) -> Result:
    """Train, and cause a fault in a thread when the first row comes."""
    thread = threading.Thread(target=fault)

    def begin(step: int, metrics: dict[str, float]) -> None:
        if step > 0 and thread.ident is None:
            thread.start()

    result = train(job_of(TOPOLOGIES[NAME], stores, stores / PLAN, STEPS), client, extensions=[begin], progress=False,
                   **options)  # fmt: skip
    thread.join()
    return result


@pytest.mark.parametrize("how", SIGNALS)
def test_a_run_survives_each_end_of_a_process(
    how: str, monkeypatch: pytest.MonkeyPatch, cluster: Client, stores: Path, expected: Result
) -> None:
    monkeypatch.setitem(run_case.__globals__["STEPS"], NAME, STEPS)
    case = Case(0, NAME, "forward", 150, 0.0, 1, 0)
    ending = run_case(case, how, cluster, stores, {NAME: expected}, spares=False)
    bring_back(cluster, WORKERS)
    assert ending.verdict == "right", ending
    assert ending.kills == 1


@pytest.mark.parametrize("kind", ["exit", "segfault", "pause", "retire"])
def test_a_run_survives_faults_that_dask_causes(kind: str, cluster: Client, stores: Path, expected: Result) -> None:
    """A retired or paused worker costs no step."""
    result = train_disturbed(cluster, stores, lambda: cause(cluster, kind, _address(cluster)))
    wait_for_return(cluster, WORKERS)
    assert judge(result, expected) == "right"
    again = [row["steps_again"] for row in result.history.phase("recovery")]
    assert len(again) == 1 if kind in ("exit", "segfault") else not sum(again), again


def test_a_run_survives_a_kill_on_a_full_disk(cluster: Client, stores: Path, expected: Result, tmp_path: Path) -> None:
    with files_of_at_most(1 << 10):
        result = train_disturbed(
            cluster, stores, lambda: cause(cluster, "kill", _address(cluster)), workspace=tmp_path / "run"
        )
    wait_for_return(cluster, WORKERS)
    assert judge(result, expected) == "right"
    assert result.unsaved


def _address(client: Client) -> str:
    """Return the address of a Dask worker; the run uses all of them."""
    return next(iter(client.scheduler_info(n_workers=-1)["workers"]))
