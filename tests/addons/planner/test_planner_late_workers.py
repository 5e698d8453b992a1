"""A benchmark, and its command, wait for Dask workers that come late."""

from pathlib import Path

import pytest
from distributed import Client

from dsinga.addons.planner.benchmark import measure
from dsinga.job import Job
from tests.support.late_workers import TWO, check_status, check_wait


def test_a_benchmark_waits_for_late_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(job: Job, client: Client) -> object:
        return measure(job.replace(cluster=TWO), client, steps=2, synthetic=False)

    check_wait(2, bench, tmp_path, monkeypatch)


def test_a_command_whose_cluster_does_not_come_ends_with_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_status("bench", (), tmp_path, monkeypatch, capsys)
