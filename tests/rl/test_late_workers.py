"""Remote actors wait for Dask workers that come late."""

from pathlib import Path

import pytest
from distributed import Client

from dsinga import rl
from dsinga.job import Job
from tests.support.late_workers import check_wait
from tests.support.rl_cases import actor_critic


def test_actors_wait_for_late_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(_: Job, client: Client) -> object:
        agent = rl.Agent(rl.A2C(actor_critic(), rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))))
        return rl.train(agent, "CartPole-v1", steps=80, actors=1, client=client, progress=False)

    check_wait(1, learn, tmp_path, monkeypatch)
