"""The names of functions in a job: modules that fail, names that are none, functions that jobs cannot call."""

from pathlib import Path

import pytest

from dsinga.base.errors import UserError
from dsinga.job.functions import find_function


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
