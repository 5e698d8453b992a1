"""Which params evaluate and predict take: those of a result, or of the job's own checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import Client

from dsinga import UserError, api
from dsinga.extensions import KeepBest
from dsinga.job import Job


def test_a_result_takes_the_place_of_its_params(job: Job, stores: Path, threads: Client):
    result = api.train(job.replace(train_steps=2), threads, progress=False, data_root=str(stores))
    expected = api.evaluate(job, result.params, client=threads, data_root=str(stores))
    assert api.evaluate(job, result, client=threads, data_root=str(stores)) == expected
    with pytest.raises(
        UserError, match="has no layer 'x'; its layers are data, conv, relu, norm, pool, drop, ip, loss"
    ):
        api.predict(job, result, "x", client=threads, data_root=str(stores))
    with pytest.raises(UserError, match=r"job must be a dsinga.Job or the path of a job file, not a Result"):
        api.evaluate(result, client=threads)  # type: ignore[arg-type]


def test_the_line_that_names_the_params_names_the_best_ones(
    job: Job, stores: Path, threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    job = job.replace(train_steps=2, test_freq=1)
    where = {"client": threads, "data_root": str(stores)}
    api.train(job, workspace="small-workspace", progress=False, extensions=[KeepBest("test/loss")], **where)
    api.evaluate(job, **where)
    assert capsys.readouterr().err == (
        "params of small-workspace/checkpoint/step2 (the best ones are in small-workspace/best.safetensors)\n"
    )
