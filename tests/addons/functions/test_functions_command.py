"""What a command says of a user's function that ends the program."""

import re
from pathlib import Path

import pytest

from tests.support.command_line import JOB, Dsinga


def test_a_function_that_calls_exit_does_not_end_a_command_in_silence(
    dsinga: Dsinga, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ends.py").write_text("import sys\ndef f(x):\n    sys.exit(0)\n")
    monkeypatch.syspath_prepend(folder)
    layer = 'layer { name: "loss" type: kFunction srclayers: "ip1" function_conf { function: "ends:f" } }'
    (folder / "job.conf").write_text(re.sub('layer { name: "loss".*', layer, JOB))
    ended = dsinga("show", "job.conf")
    assert (ended.returncode, ended.stderr) == (1, f"dsinga: {folder}/ends.py:3: sys.exit(0) has ended the command\n")
