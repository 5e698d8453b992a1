"""Searches, and their commands, wait for Dask workers that come late."""

from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Client

import dsinga
from dsinga.job import Job
from tests.support.late_workers import check_status, check_wait


def find_rate(job: Job, client: Client) -> object:
    """Search for a learning rate with two workers."""
    return dsinga.find_learning_rate(job, client=client, workers=2, steps=10, progress=False)


def search(job: Job, client: Client) -> object:
    """Search among one setting with two workers."""
    return dsinga.search(job, {"seed": [1]}, client=client, workers=2, progress=False)


@pytest.mark.parametrize("call", [find_rate, search])
def test_searches_wait_for_late_workers(
    call: Callable[[Job, Client], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_wait(2, call, tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "options"), [("search", ("--set", "seed=1,2")), ("find-lr", ())])
def test_a_command_whose_cluster_does_not_come_ends_with_75(
    name: str,
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_status(name, options, tmp_path, monkeypatch, capsys)
