"""An extension that raises ends the run with its traceback, after a checkpoint from which the run goes on."""

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga import UserError
from dsinga.api import Result, train
from dsinga.base.registry import register
from dsinga.checkpoint import read_checkpoint
from dsinga.extensions import EverySteps, Extension
from dsinga.job import ClusterConf, Job, loads
from tests.support.extension_runs import rows, validating
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
    def test_a_checkpoint_is_written_from_which_the_run_goes_on(
        self, job: Job, tmp_path: Path, unbroken: Result, extension: Breaking, step: int
    ) -> None:
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
