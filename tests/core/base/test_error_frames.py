"""Errors keep none of the variables of dsinga's functions, and all of others."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

from dsinga.base.error_frames import clear_frames, cleared_frames, public
from dsinga.base.errors import UserError
from dsinga.ops import get_ops


class Held:
    """An object that a variable of a function refers to."""


def fail(references: list[weakref.ref[Held]]) -> None:
    held = Held()
    references.append(weakref.ref(held))
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise UserError("the error") from error


@cleared_frames()
def task(references: list[weakref.ref[Held]]) -> None:
    fail(references)


def test_a_task_that_fails_keeps_nothing() -> None:
    references: list[weakref.ref[Held]] = []
    with pytest.raises(UserError, match="the error") as raised:
        task(references)
    gc.disable()
    try:
        assert references[0]() is None
    finally:
        gc.enable()
    names = [frame.name for frame in raised.traceback]
    assert names[-2:] == ["task", "fail"], "the lines of the traceback stay"


def test_only_frames_of_the_package_are_cleared() -> None:
    class Conf:
        def __array__(self, dtype=None, copy=None):
            held = Held()
            references.append(weakref.ref(held))
            raise UserError("in the user's code, called by dsinga")

    references: list[weakref.ref[Held]] = []
    with pytest.raises(UserError) as raised:
        get_ops("numpy").asarray(Conf())
    clear_frames(raised.value, "dsinga")
    variables = {frame.name: frame.locals for frame in raised.traceback}
    assert variables["asarray"] == {}
    assert variables["__array__"]["held"] is references[0](), "a debugger shows the user's variables"


SCRIPT = """
import numpy as np
from dsinga import nn

x = np.full((40, 4), np.nan, np.float32)
model = nn.Sequential([nn.Input((4,)), nn.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1])
"""
NOTEBOOK = f"""
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance(colors="NoColor").run_cell({SCRIPT!r})
"""


@pytest.mark.parametrize(
    ("script", "entry"), [(SCRIPT, "  File "), pytest.param(NOTEBOOK, "File ", marks=pytest.mark.ci)]
)
def test_scripts_and_notebooks_show_the_line_of_the_user_and_the_sentence(script, entry, monkeypatch):
    if script is NOTEBOOK:
        pytest.importorskip("IPython")
    shown = {}
    for variable in ("", "all"):
        monkeypatch.setenv("DSINGA_TRACEBACK", variable)
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        shown[variable] = (ended.stderr + ended.stdout).strip().splitlines()
    assert "'x' has NaN in record" in shown[""][-1]
    assert any("line 8" in line or "fit(x" in line for line in shown[""])
    files = [line for line in shown[""] if line.startswith(entry) and "dsinga" in line]
    assert len(files) == 1
    assert "error_frames.py" in files[0]
    assert len(shown["all"]) > 60 > 20 > len(shown[""])


def test_functions_of_the_user_and_the_errors_in_them_stay() -> None:
    def fail_in_callback() -> None:
        try:
            raise KeyError("of the user")
        except KeyError as error:
            raise UserError("the sentence") from error

    call = public(lambda function: function())
    with pytest.raises(UserError) as raised:
        call(fail_in_callback)
    assert [frame.name for frame in raised.traceback][-2:] == ["<lambda>", "fail_in_callback"]
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_running_function_keeps_its_variables() -> None:
    array = np.ones(3)
    try:
        raise UserError("here")
    except UserError as error:
        clear_frames(error)
    assert array.sum() == 3
