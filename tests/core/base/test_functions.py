"""The names of functions in a job: modules that fail, names that are none, functions that jobs cannot call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.base.errors import UserError
from dsinga.base.functions import find_function
from dsinga.data import write_store

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
    "ends": ("class End(BaseException): pass\nraise End('now')\n", "DIR/ends.py:2: End: now"),
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


@pytest.mark.parametrize("name", [":f", "module:", "a b:c", ".x:f", "..:f", "a..b:f", "a:b:c", "x\0:f", "os:", "f"])
def test_what_is_no_name_of_a_function_is_refused(name: str) -> None:
    with pytest.raises(UserError, match='there is no function .*or write "module:function"$'):
        find_function(name)


LOADERS = """
import functools, os, pickle
from pickle import loads as decode
from numpy import load as array
from os import system
again = functools.partial(pickle.loads)
made = pickle.Unpickler
"""


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "subprocess:Popen", "cloudpickle:loads", "pathlib:Path", "decimal:Decimal", "builtins:eval"),
        *("numpy:load", "numpy.lib.npyio:load", "distributed.protocol.pickle:loads", "yaml:unsafe_load", "pandas:eval"),
        *("pandas:read_pickle", "pandas:io.common.os.system", "distributed.protocol.serialize:deserialize"),
        *("dsinga.base.registry:import_file", "opens:decode", "opens:array", "opens:system", "opens:again"),
        *("opens:made", "opens:pickle.loads", "opens:os.system"),
    ],
)
def test_a_job_of_somebody_else_calls_no_function_that_runs_what_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opens.py").write_text(LOADERS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="which jobs cannot call"):
        find_function(name)
