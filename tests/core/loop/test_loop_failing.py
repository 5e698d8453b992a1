"""Runs that fail, by their steps and by damaged records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga import UserError
from dsinga.api import Result, train
from dsinga.base.registry import register
from dsinga.checkpoint import read_checkpoint
from dsinga.extensions import EarlyStopping, EverySteps, Extension, KeepBest, ReduceOnPlateau
from dsinga.job import ClusterConf, Job, loads
from tests.support.extension_runs import rows, validating
from tests.support.refusals import refused
from tests.support.small_job import JOB, assert_same
from tests.support.user_layers import Identity, with_user_layer

STEPS = 16


class Broken(Exception):
    pass


class Breaking(Extension):
    """Raises in one of its methods, at a step."""

    def __init__(self, method: str, step: int, error: type[Exception] = Broken, pauses: bool = True):
        self.trigger = EverySteps(1)
        self.pauses = pauses
        self._method, self._step, self._error = method, step, error

    def _break(self, method: str, step: int) -> None:
        if (method, step) == (self._method, self._step):
            raise self._error("a fault of its own")

    def start(self, loop) -> None:
        self._break("start", loop.step)

    def run(self, loop) -> None:
        self._break("run", loop.step)

    def observe(self, loop, sums) -> None:
        self._break("observe", loop.step)

    def see_row(self, loop, row) -> None:
        self._break("see_row", row["step"])

    def finish(self, loop) -> None:
        self._break("finish", loop.step)


@pytest.fixture(scope="module")
def unbroken(stores: Path) -> Result:
    """A run without a fault."""
    return train(validating(loads(JOB, str(stores / "small.conf")), train_steps=STEPS), progress=False)


class TestFailures:
    @pytest.mark.parametrize(
        ("extension", "step"),
        [
            (Breaking("run", 6), 6),
            (Breaking("run", 8), 8),
            (Breaking("run", 6, pauses=False), 6),
            (Breaking("observe", 6, pauses=False), 6),
            (Breaking("see_row", 7, pauses=False), 7),
            (Breaking("see_row", 8), 8),
            (Breaking("run", STEPS), STEPS),
        ],
        ids=["run", "validation", "run without a pause", "observe", "row of training", "row of val", "end"],
    )
    def test_a_checkpoint_is_written_from_which_the_run_goes_on(self, job, tmp_path, unbroken, extension, step):
        job = validating(job, train_steps=STEPS)
        with pytest.raises(Broken) as caught:
            train(job, workspace=tmp_path, extensions=[extension], progress=False)
        (note,) = caught.value.__notes__
        assert note.startswith(f"extension Breaking failed at step {step}; ")
        assert "steps were done; go on from" in note
        resumed = train(job, workspace=tmp_path, resume=True, progress=False)
        assert_same(resumed.params, unbroken.params)
        assert rows(resumed) == rows(unbroken)

    def test_its_state_is_saved(self, job: Job, tmp_path: Path) -> None:
        class Counting(Breaking):
            count = 0

            def run(self, loop) -> None:
                self.count += 1
                super().run(loop)

            def state_dict(self):
                return {"count": np.int64(self.count)}

            def load_state(self, state) -> None:
                self.count = state.get("count", 0)

        with pytest.raises(Broken):
            train(validating(job), workspace=tmp_path, extensions=[Counting("run", 6)], progress=False)
        resumed = Counting("run", -1)
        train(validating(job), workspace=tmp_path, extensions=[resumed], resume=True, progress=False)
        assert resumed.count == 40

    def test_a_users_error_names_the_extension_in_its_message(self, job: Job, tmp_path: Path) -> None:
        with pytest.raises(UserError) as caught:
            train(validating(job), workspace=tmp_path, extensions=[Breaking("run", 6, UserError)], progress=False)
        said = "a fault of its own (extension Breaking failed at step 6; 6 steps were done; go on from "
        assert str(caught.value).startswith(said)

    def test_without_a_workspace_there_is_no_checkpoint(self, job: Job) -> None:
        with pytest.raises(Broken) as caught:
            train(validating(job), extensions=[Breaking("run", 6)], progress=False)
        assert "6 steps were done and no checkpoint was written" in caught.value.__notes__[0]

    @pytest.mark.parametrize(("method", "step"), [("start", 0), ("finish", 40)])
    def test_before_and_after_training(self, job: Job, tmp_path: Path, method: str, step: int) -> None:
        with pytest.raises(Broken) as caught:
            train(validating(job), workspace=tmp_path, extensions=[Breaking(method, step)], progress=False)
        assert caught.value.__notes__[0].startswith(f"extension Breaking failed at step {step}")
        assert (tmp_path / "checkpoint" / "step40").exists() == (method == "finish")

    def test_several_groups(self, job: Job, threads: Client, tmp_path: Path) -> None:
        job = validating(job, train_steps=100_000, cluster=ClusterConf(nworker_groups=3))
        with pytest.raises(Broken):
            train(job, threads, workspace=tmp_path, extensions=[Breaking("run", 6)], progress=False)
        assert read_checkpoint(tmp_path / "checkpoint" / "step6").step == 6

    def test_a_fault_of_the_net_in_an_evaluation_is_not_the_extensions(self, job: Job) -> None:
        @register("layer", "FailsWhenEvaluated")
        class FailsWhenEvaluated(Identity):
            def compute_feature(self, params, sources, ctx):
                if not ctx.training:
                    raise Broken("in the net")
                return super().compute_feature(params, sources, ctx)

        job = validating(with_user_layer(job, "FailsWhenEvaluated"))
        with pytest.raises(Broken, match="in the net") as caught:
            train(job, progress=False)
        assert not any("extension" in note for note in caught.value.__notes__)


BAD: list[tuple[list[str], Any, str]] = [
    (["rate_factors"], {"x": 1}, "is damaged: its loop has ValueError"),
    (["rate_factors"], {"3": "x"}, "is damaged: its loop has TypeError"),
    (["rate_factors"], 7, "is damaged: its loop has AttributeError"),
    (["metrics"], [], "is damaged: its loop has AttributeError"),
    (["metrics"], {"val/loss": "x"}, "is damaged: its loop has TypeError"),
    (["extensions"], [], "is damaged: its loop has AttributeError"),
    (["extensions", "KeepBest"], None, "is damaged: its loop has AttributeError"),
    (["extensions", "KeepBest", "extension"], [], "is not an object"),
    (["extensions", "KeepBest", "extension"], {"step": 3}, "of the extension KeepBest in the checkpoint does not"),
    (["extensions", "KeepBest", "trigger", "best"], "x", "state of the extension KeepBest in the checkpoint does not"),
    (["extensions", "EarlyStopping", "extension", "count"], "x", "extension EarlyStopping in the checkpoint does not"),
    (["extensions", "ReduceOnPlateau", "extension", "cooling"], [], "extension ReduceOnPlateau in the checkpoint does"),
]


def extensions() -> list[Extension]:
    """Return extensions with states."""
    return [EarlyStopping("val/loss", patience=9), ReduceOnPlateau("val/loss", patience=9), KeepBest("val/loss")]


def test_a_state_that_is_none_is_refused_in_one_message(job: Job, tmp_path: Path) -> None:
    job = validating(job, 1, 1, checkpoint_freq=5, train_steps=10)
    run = tmp_path / "run"
    train(job, workspace=run, extensions=extensions(), progress=False)
    path = run / "checkpoint" / "step10" / "checkpoint.json"
    fields = json.loads(path.read_text(encoding="utf-8")) | {"format": 1}
    del fields["checksum"]
    for keys, value, message in BAD:
        damaged = json.loads(json.dumps(fields))
        holder = damaged["loop"]
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]] = value
        path.write_text(json.dumps(damaged), encoding="utf-8")
        refused(lambda: train(job, workspace=run, resume=path.parent, extensions=extensions(), progress=False), message)
    path.write_text(json.dumps(fields), encoding="utf-8")
    assert train(job, workspace=run, resume=path.parent, extensions=extensions(), progress=False).step == 10
