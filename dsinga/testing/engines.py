"""EngineContract: tests that an engine trains and predicts with the same bits as this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga.api import Result, evaluate, predict, train
from dsinga.api.engines import runner_of
from dsinga.api.execution import Execution
from dsinga.api.runners import THIS_PROCESS, Runner, TrainingOptions
from dsinga.base.errors import Cancelled
from dsinga.checkpoint import latest, read_checkpoint
from dsinga.job import loads

JOB = """
name: "engine" train_steps: 30 disp_freq: 10 test_freq: 15 checkpoint_freq: 10 cluster { }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.05 } momentum: 0.9 }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "given" batchsize: 16 shape: 6 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: ["ip", "data"] }
}
"""
X = np.random.default_rng(3).normal(size=(50, 6)).astype(np.float32)  # the last batch is short
DATA = {"train": (X, (X.sum(axis=1) > 0).astype(np.int32)), "test": (X[:20], np.arange(20) % 2)}


class EngineContract:
    """The tests that every engine must pass; a subclass, named ``Test...``, sets a ``runner``.

    An engine is a subclass of :class:`dsinga.api.runners.Runner`, registered with ``@register("engine", NAME)``.

    >>> from dsinga.api.runners import THIS_PROCESS
    >>> from dsinga.testing import EngineContract
    >>> class TestThisProcess(EngineContract):  # in a file test_this_process.py, run by pytest
    ...     runner = THIS_PROCESS
    """

    runner: Runner

    def test_a_run_has_the_rows_and_the_checkpoint_of_this_process(self, tmp_path: Path) -> None:
        """A run on the engine has the params, metrics and checkpoint of a run in this process."""
        there, here = (_train(tmp_path / name, where) for name, where in (("there", self.runner), ("here", None)))
        np.testing.assert_equal(there.params, here.params)
        rows = [[{**row, "time": 0} for row in result.history] for result in (there, here)]
        assert rows[0] == rows[1]
        folders = [latest(tmp_path / name / "checkpoint") for name in ("there", "here")]
        saved, expected = (read_checkpoint(folder) for folder in folders if folder is not None)
        assert saved.step == expected.step
        np.testing.assert_equal(saved.state, expected.state)

    def test_a_run_goes_on_elsewhere_and_comes_back(self, tmp_path: Path) -> None:
        """A run that another engine continues from a checkpoint equals the unbroken run."""
        for steps, where in ((10, None), (20, self.runner), (30, None)):
            result = _train(tmp_path / "parts", where, steps)
        np.testing.assert_equal(result.params, _train(tmp_path / "whole", None).params)

    def test_figures_and_features_are_those_of_this_process(self, tmp_path: Path) -> None:
        """Evaluations and predictions match this process, also if the last batch is short."""
        params = _train(tmp_path, None).params
        clients: list[Any] = [self.runner, THIS_PROCESS]
        there, here = (evaluate(loads(JOB), params, client=client, data=DATA) for client in clients)
        assert there == here
        outputs, expected = (predict(loads(JOB), params, "ip", client=client, data=DATA) for client in clients)
        np.testing.assert_array_equal(outputs, expected)

    def test_a_run_that_was_cancelled_ends(self) -> None:
        """A run raises Cancelled if it was cancelled before it began."""
        cancelled = threading.Event()
        cancelled.set()
        options = TrainingOptions(data=DATA, progress=False)
        with pytest.raises(Cancelled):
            Execution(loads(JOB), self.runner, options, cancelled=cancelled).execute()

    def test_a_call_that_asks_for_a_cluster_gets_one(self) -> None:
        """Calls that ask for a cluster do not use a runner of this process."""
        assert runner_of(self.runner, True) is not THIS_PROCESS
        assert runner_of(self.runner, False) is self.runner


def _train(workspace: Path, runner: Any, steps: int = 30) -> Result:
    """Train on a runner, None for this process, from the workspace's newest checkpoint if any."""
    job = loads(JOB).replace(train_steps=steps)
    client: Any = runner or THIS_PROCESS
    return train(job, client, data=DATA, workspace=workspace, resume="auto", progress=False)
