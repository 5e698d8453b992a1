"""A process of the same user that attacks all sockets of a run changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from distributed import Client

from dsinga.job import ClusterConf, loads
from tests.faults.sockets import CUT_JOB, attacked_runs


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="abstract sockets are Linux's")
def test_an_attacked_run_gives_the_same_bits(processes: Client, stores: Path, tmp_path: Path) -> None:
    """``python -m tests.faults.sockets`` attacks longer."""
    conf = ClusterConf(nworkers_per_group=3, nservers_per_group=2)
    job = loads(CUT_JOB, str(stores / "small.conf")).replace(cluster=conf, train_steps=60)
    attack = attacked_runs(job, processes, 400, 0, tmp_path)
    assert not attack.faults
    sockets = int(attack.report.split()[0])
    assert sockets >= 5, "two servers and three mailboxes; other runs on this host are attacked, too"
