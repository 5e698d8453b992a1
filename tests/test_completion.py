"""What the Tab key offers after "dsinga.": the public names, before any of them has been used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dsinga

COMPLETE = """
import sys
from IPython.core.interactiveshell import InteractiveShell
import dsinga
shell = InteractiveShell.instance()
shell.Completer.use_jedi = False
shell.user_ns["dsinga"] = dsinga
_, matches = shell.complete("dsinga.")
print(*(match.removeprefix("dsinga").removeprefix(".") for match in matches))
assert "dask" not in sys.modules, "completion imports nothing"
"""


def test_the_completer_of_ipython_offers_what_there_is():
    pytest.importorskip("IPython")
    command = [sys.executable, "-W", "ignore", "-c", COMPLETE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    offered = set(done.stdout.split())
    assert {"train", "evaluate", "predict", "load", "Job", "plan", "register", "UserError"} <= offered
    assert {"models", "data", "extensions", "nn"} <= offered


def test_every_name_that_is_listed_is_there():
    for name in dir(dsinga):
        assert getattr(dsinga, name) is not None
    assert set(dsinga.__all__) <= set(dir(dsinga))
    assert not [name for name in dir(dsinga) if name.startswith("_") and not name.startswith("__")]


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="module 'dsinga' has no attribute 'trian'"):
        dsinga.trian  # noqa: B018
