"""Trains while another process of the same user attacks all local sockets: ``python -m tests.faults.sockets``.

The attacked runs must give the params of an undisturbed one, bit by bit; nothing that was sent may be executed, and no
descriptors and threads may be left. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from distributed import Client

from dsinga.api import train
from dsinga.job import ClusterConf, Job, loads
from tests.faults import socket_attack
from tests.support.small_job import JOB

# The layer is cut along its outputs, so that workers send each other arrays: there are sockets of mailboxes, too.
CUT_JOB = JOB.replace('layer { name: "ip"', 'layer { partition_dim: 1 name: "ip"')
SETTLE_SECONDS = 20.0  # in which a run's threads and descriptors go


class Attack(NamedTuple):
    """What an attack has come to: its own report, and what dsinga did wrong, in words."""

    report: str
    runs: int
    faults: list[str]


def attacked_runs(job: Job, client: Client, count: int, seed: int, folder: Path) -> Attack:
    """Train again and again until a process has made ``count`` attacks on the sockets of the runs."""
    expected = train(job, client, progress=False).params
    before = _left_of_runs(client)
    executed = folder / "executed"
    assert job.cluster is not None
    sockets = job.cluster.nworkers_per_group + job.cluster.nservers_per_group
    command = [sys.executable, socket_attack.__file__, *map(str, (count, sockets, seed, executed))]
    faults, runs = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "ready\n"
            while attacker.poll() is None:
                params = train(job, client, progress=False).params
                runs += 1
                differ = [name for name, value in expected.items() if value.tobytes() != params[name].tobytes()]
                faults += [f"run {runs}: {name} differs" for name in differ]
            report = attacker.stdout.read().strip()
            if attacker.returncode:
                faults.append("the attacker has failed")
        finally:
            attacker.kill()
    if executed.exists():
        faults.append("a pickle was executed")
    deadline = time.monotonic() + SETTLE_SECONDS
    while (after := _left_of_runs(client)) > before and time.monotonic() < deadline:
        threading.Event().wait(0.1)
    if after > before:
        faults.append(f"descriptors and threads of dsinga have grown from {before} to {after}")
    return Attack(f"{report}; descriptors and threads of dsinga {before} before, {after} after", runs, faults)


def _left_of_runs(client: Client) -> tuple[int, int]:
    """Return the numbers of local sockets and shared memory, and of threads of runs, in all Dask workers."""
    counts = client.run(_descriptors_and_threads).values()
    return sum(each for each, _ in counts), sum(each for _, each in counts)


def _descriptors_and_threads() -> tuple[int, int]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # that of the folder itself
            continue
    kinds = ("memfd:dsinga", "memfd:attack", "pipe:", "/ ")
    threads = sum(thread.name.startswith("dsinga") for thread in threading.enumerate())
    return sum(link.lstrip("/").startswith(kinds) or link == "/" for link in links), threads


def main() -> int:
    """Run the attack that the arguments ask for; return 1 if dsinga has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sockets", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="attacks [10000]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200, help="training steps of a run [200]")
    options = parser.parse_args()
    from distributed import LocalCluster

    from dsinga.data import write_store

    with tempfile.TemporaryDirectory(prefix="dsinga-sockets-") as name:
        folder = Path(name)
        random = np.random.default_rng(7)
        for store, records in (("train", 1000), ("test", 150)):
            images = random.integers(0, 16, (records, 1, 8, 8)).astype(np.uint8)
            write_store(folder / f"{store}.zarr", [(images, random.integers(0, 10, records))])
        cluster = ClusterConf(nworkers_per_group=4, nservers_per_group=2)
        job = loads(CUT_JOB, str(folder / "small.conf")).replace(cluster=cluster, train_steps=options.steps)
        with (
            LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as local,
            Client(local, set_as_default=False) as client,
        ):
            began = time.monotonic()
            attack = attacked_runs(job, client, options.count, options.seed, folder)
            seconds = time.monotonic() - began
    print(f"{options.count} attacks in {seconds:.0f} s during {attack.runs} runs of {options.steps} steps")
    print(attack.report)
    print("\n".join(attack.faults) or "the params of all runs are bit-equal, nothing was executed")
    return 1 if attack.faults else 0


if __name__ == "__main__":
    sys.exit(main())
