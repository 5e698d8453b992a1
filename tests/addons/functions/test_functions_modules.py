"""Modules that kFunction layers name: what a job's user is told of those that fail."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.base.errors import UserError
from dsinga.data import write_store
from tests.core.nn.test_nn_further_habits import habits_of, run_habit

JOB = """name: "names"
train_steps: 1
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "x.zarr" batchsize: 4 shape: 3 } }
  layer { name: "f" type: kFunction srclayers: "data" function_conf { function: "NAME" } }
}
"""

# The modules that jobs name, and what is said of each, behind the name of the function.
MODULES = {
    "exits": ("import sys\nsys.exit(0)\n", "DIR/exits.py:2: SystemExit: 0"),
    "raises": ("x = 1\nraise RuntimeError('boom')\n", "DIR/raises.py:2: RuntimeError: boom"),
    "imports": ("import nothing_there\n", "DIR/imports.py:1: ModuleNotFoundError: No module named 'nothing_there'"),
    "damaged": ("x = 1\ndef f(:\n", "DIR/damaged.py:2: SyntaxError: invalid syntax"),
    "base_exception": ("class End(BaseException): pass\nraise End('now')\n", "DIR/base_exception.py:2: End: now"),
    "lazy": ("def __getattr__(name):\n    raise KeyError(name)\n", "DIR/lazy.py:2: KeyError: 'f'"),
    "absent": ("", "No module named 'absent'; put the folder of absent.py into PYTHONPATH"),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_fails_is_one_sentence_with_the_jobs_line(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, message = MODULES[module]
    if text:
        (tmp_path / f"{module}.py").write_text(text)
    write_store(tmp_path / "x.zarr", [(np.ones((4, 3), np.float32), None)])
    (tmp_path / "job.conf").write_text(JOB.replace("NAME", f"{module}:f"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as refused:
        dsinga.build_net(dsinga.load(tmp_path / "job.conf"))
    beginning = f"{tmp_path}/job.conf:6: layer 'f': the function '{module}:f' cannot be imported: "
    assert str(refused.value).startswith(beginning + message.replace("DIR", str(tmp_path)))
    assert isinstance(refused.value.__cause__, BaseException)


# Functions of users as losses and layers: habits of those who know Keras, and what is refused.
@pytest.mark.parametrize("habit", habits_of("functions"))
def test_a_habit_of_keras_works_as_written(habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_habit(habit, tmp_path, monkeypatch)
