"""Tests of estimators on a cluster fork their worker processes from one that has imported everything."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def fork_workers(forked: None) -> None:
    """Use the fork server in every test of this folder."""
