"""A run with extensions that goes on from any of its checkpoints is the unbroken one, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from distributed import Client

from dsinga.api import train
from dsinga.checkpoint import read_checkpoint, read_params
from dsinga.extensions import EarlyStopping, Extension, KeepBest, ReduceOnPlateau
from dsinga.job import Job
from tests.support.extension_runs import Acting, rows, validating
from tests.support.small_job import assert_same


def stop_rising(patience: int = 2) -> list[Extension]:
    """Return extensions that act on the small job: its accuracy soon does not grow by half any more."""
    return [
        EarlyStopping("val/accuracy", patience=4, min_delta=0.5),
        ReduceOnPlateau("val/loss", factor=0.5, patience=patience, min_delta=0.5),
        KeepBest("val/loss"),
    ]


class TestResuming:
    @pytest.mark.parametrize(("workers", "servers", "cluster"), [(1, 1, "threads"), (3, 2, "processes")])
    def test_a_run_from_any_checkpoint_is_the_unbroken_one(
        self, request: pytest.FixtureRequest, job: Job, tmp_path: Path, workers: int, servers: int, cluster: str
    ) -> None:
        """Stopped early, with the best params, with learning rates that have changed: bits and history."""
        client = request.getfixturevalue(cluster)
        job = validating(job, workers, servers, checkpoint_freq=5)
        unbroken = train(job, client, workspace=tmp_path / "run", extensions=stop_rising(), progress=False)
        assert 4 < unbroken.step < 40
        assert unbroken.stopped.startswith(f"training stopped after {unbroken.step} of 40 steps: val/accuracy has not")
        last = read_checkpoint(tmp_path / "run" / "checkpoint" / f"step{unbroken.step}")
        assert last.loop["rate_factors"]
        steps = sorted(int(path.name[4:]) for path in (tmp_path / "run" / "checkpoint").iterdir())
        assert steps == [*range(5, unbroken.step, 5), unbroken.step]
        for step in steps:
            folder = tmp_path / f"from{step}"
            shutil.copytree(tmp_path / "run", folder)
            for other in steps:
                if other > step:
                    shutil.rmtree(folder / "checkpoint" / f"step{other}")
            resumed = train(job, client, workspace=folder, extensions=stop_rising(), resume=True, progress=False)
            assert_same(resumed.params, unbroken.params)
            assert rows(resumed) == rows(unbroken), f"resumed from step {step}"
            assert (resumed.step, resumed.stopped, resumed.remarks) == (
                unbroken.step, unbroken.stopped, unbroken.remarks
            )  # fmt: skip
            assert_same(
                read_checkpoint(folder / "checkpoint" / f"step{unbroken.step}").params,
                last.params,
            )

    def test_the_best_params_are_those_of_a_run_of_so_many_steps(
        self, job: Job, threads: Client, tmp_path: Path
    ) -> None:
        result = train(
            validating(job), threads, workspace=tmp_path, extensions=[KeepBest("val/accuracy", mode="min")],
            progress=False,
        )  # fmt: skip
        accuracies = [(row["accuracy"], row["step"]) for row in result.history.phase("val")]
        value, best = min(accuracies)
        assert result.remarks == (f"the params are those after {best} steps, with the best val/accuracy: {value:.4g}",)
        assert result.step == 40
        short = train(validating(job).replace(train_steps=best), threads, progress=False) if best else None
        if short:
            assert_same(result.params, short.params)
        assert_same(read_params(tmp_path / "best.safetensors"), result.params)
        assert "the params are those after" in repr(result)

    def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(
        self, job: Job, threads: Client, tmp_path: Path
    ) -> None:
        job = validating(job)
        train(job.replace(train_steps=20), threads, workspace=tmp_path, progress=False)
        about = tmp_path / "checkpoint" / "step20" / "checkpoint.json"
        fields = json.loads(about.read_text())
        del fields["loop"], fields["checksum"]
        about.write_text(json.dumps(fields | {"format": 1}))
        resumed = train(job, threads, workspace=tmp_path, resume=True, progress=False, extensions=stop_rising())
        assert resumed.step > 20

    def test_extensions_may_come_and_go(self, job: Job, threads: Client, tmp_path: Path) -> None:
        job = validating(job)
        short = job.replace(train_steps=20)
        train(short, threads, workspace=tmp_path, progress=False, extensions=[KeepBest("val/loss")])
        resumed = train(job, threads, workspace=tmp_path, resume=True, progress=False, extensions=[Acting(30, print)])
        assert_same(resumed.params, train(job, threads, progress=False).params)
