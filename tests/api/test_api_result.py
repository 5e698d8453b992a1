"""How a result is shown."""

from __future__ import annotations

import dsinga
from dsinga.job import Job
from tests.support.small_job import with_topology


def test_a_result_with_a_recovery_shows_its_metrics(job: Job) -> None:
    result = dsinga.train(with_topology(job, 1).replace(train_steps=4, disp_freq=2), progress=False)
    before = repr(result)
    assert "train loss" in before
    result.history.append({"step": 4, "phase": "recovery", "time": 1.0, "lost": "a Dask worker", "steps_again": 2})
    assert repr(result) == before
