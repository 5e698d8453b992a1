"""Tests of the cluster fork their worker processes from one that has imported everything."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def fork_workers(forked: None) -> None:
    """Use the fork server in every test of this folder."""


@pytest.fixture
def announced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say at once what is waited for."""
    monkeypatch.setattr("dsinga.cluster.dask.waiting.FIRST_ANNOUNCEMENT_SECONDS", 0.0)
    monkeypatch.setattr("dsinga.cluster.dask.waiting.CHANGE_SECONDS", 0.0)
