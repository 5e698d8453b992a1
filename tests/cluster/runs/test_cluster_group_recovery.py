"""A worker group that loses a process starts again alone; the other groups go on meanwhile."""

from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.cluster import connect
from dsinga.job import ClusterConf, Job
from tests.support.members import kill_member, names_here
from tests.support.observers import Recorder, of_phase, train_observed

pytestmark = pytest.mark.process

STEPS = 400
HOGWILD = {"nworker_groups": 2, "nserver_groups": 2, "nworkers_per_group": 2, "sync_freq": 2}
DOWNPOUR = {"nworker_groups": 2, "nworkers_per_group": 2, "staleness": 1000}
Places = dict[str, list[str]]  # by the address of a Dask worker: the names of the workers and servers that it has


class Killer(Recorder):
    """Kills the process of a worker, or of a server, at step 100; looks what is where when it has been replaced."""

    def __init__(self, client: Client, victim: str):
        super().__init__(100, self.kill)
        self._client, self._victim = client, victim
        self.places: Places = {}

    def kill(self) -> None:
        kill_member(self._client, self._victim)

    def record(self, row: dict[str, Any]) -> None:
        super().record(row)
        if row["phase"] == "recovery" and not self.places:
            self.places = self._client.run(names_here)


def train(job: Job, figures: dict[str, Any], victim: str) -> Killer:
    """Train a job on four processes, of which one is killed; the fifth takes its place, so that nothing moves later."""
    job = job.replace(cluster=ClusterConf(**figures), train_steps=STEPS, disp_freq=10, test_freq=STEPS, test_steps=2)
    with connect(workers=5, separate_processes=True) as client:
        killer = Killer(client, victim)
        outcome = train_observed(job, client, killer)
    assert killer.acted
    assert outcome.step == STEPS
    assert [row["step"] for row in of_phase(killer.rows, "train")] == list(range(10, STEPS + 1, 10))
    assert [row["step"] for row in of_phase(killer.rows, "test")] == [0, STEPS]
    assert all(np.isfinite(value).all() for value in outcome.params.values())
    return killer


def generations(places: Places) -> dict[str, set[str]]:
    """Return the generations of the workers of each group, and of the servers of each server group."""
    found: dict[str, set[str]] = {}
    for names in places.values():
        for name in names:
            _, generation, group, number, *_ = name.split("-")
            found.setdefault(("workers " if number == "worker" else "servers ") + group, set()).add(generation)
    return found


SLOW = pytest.mark.slow
LOSSES = [
    pytest.param(DOWNPOUR, "1-worker-0", {"servers 0": {"0"}}, id="second group", marks=SLOW),
    pytest.param(DOWNPOUR, "0-worker-1", {"servers 0": {"0"}}, id="first group", marks=SLOW),
    pytest.param(HOGWILD, "1-0", {"servers 0": {"0"}, "servers 1": {"1"}}, id="second group and its server"),
    pytest.param(
        HOGWILD | {"nservers_per_group": 2}, "0-0", {"servers 0": {"0", "1"}, "servers 1": {"0"}},
        id="first group and one of its servers", marks=SLOW,
    ),
]  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize(("figures", "victim", "servers"), LOSSES)
def test_a_group_starts_again_alone(
    job: Job, figures: dict[str, Any], victim: str, servers: dict[str, set[str]]
) -> None:
    check_a_group_starts_again(job, figures, victim, servers)


def check_a_group_starts_again(job: Job, figures: dict[str, Any], victim: str, servers: dict[str, set[str]]) -> None:
    """Check the generations of workers and ``servers`` by group after the loss of ``victim``, as "1-worker-0"."""
    killer = train(job, figures, victim)
    (recovery,) = of_phase(killer.rows, "recovery")
    group = int(victim[0])
    assert (recovery["group"], recovery["generation"]) == (group, 1)
    workers = {f"workers {number}": {"1" if number == group else "0"} for number in (0, 1)}
    assert generations(killer.places) == workers | servers


@pytest.mark.slow
def test_all_groups_start_again_where_no_copy_of_a_server_is_left(job: Job) -> None:
    killer = train(job, DOWNPOUR, "0-0")
    (recovery,) = of_phase(killer.rows, "recovery")
    assert "group" not in recovery
    assert {number for numbers in generations(killer.places).values() for number in numbers} == {"1"}
