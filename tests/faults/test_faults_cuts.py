"""Signals by every face, with and without workspace, client and Dask workers: what ends, and what goes on."""

import pytest

from dsinga.base.termination import NAMES
from tests.support.programs import ROOT, python
from tools.faults.cuts import CLIENT, FACES, NONE, PROCESSES, SECONDS, WORKERS

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
QUICK = [
    ("dsinga train", NONE, True, "SIGUSR1"),
    ("model.fit", NONE, True, "SIGQUIT"),
    ("search", CLIENT, True, "SIGTERM"),
    ("search", NONE, False, "SIGHUP"),
]
# Commands take no client, and agents learn in this process.
PAIRS = [
    (face, cluster)
    for face in FACES
    for cluster in (NONE, CLIENT, WORKERS)
    if (cluster != CLIENT or not face.startswith("dsinga ")) and (cluster == NONE or face != "rl.train")
]


def check(cases: list[tuple[str, str, bool, str]]) -> None:
    words = [str(word) for case in cases for word in case]
    ended = python("-m", "tools.faults.cuts", *words, cwd=ROOT, timeout=SECONDS)
    assert ended.stdout.count(": right\n") == len(cases), ended.stdout


@pytest.mark.ci
def test_what_queues_send_ends_runs_in_order() -> None:
    check(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("face", "cluster"), PAIRS)
def test_every_signal_by_every_face(face: str, cluster: str) -> None:
    """Neither Dask workers nor the lack of a workspace changes which signals a program gets: there three will do."""
    few, workspace = ("SIGTERM", "SIGUSR1", "SIGINT"), face != "estimator.fit"
    names = (*NAMES, "SIGINT") if cluster == NONE else few
    cases = [(face, cluster, workspace, name) for name in names]
    check(cases + [(face, cluster, False, name) for name in few if workspace])


@pytest.mark.slow
def test_signals_to_a_driver_of_worker_processes() -> None:
    check([("train", PROCESSES, True, "SIGUSR2")])
