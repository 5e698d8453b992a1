"""What the Tab key offers: after "dsinga." in Python the public names, in a shell the commands and options."""

import contextlib
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dsinga
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group

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


@pytest.mark.ci
def test_every_name_that_is_listed_is_there():
    for name in dir(dsinga):
        with contextlib.suppress(UserError):  # its add-on is missing
            assert getattr(dsinga, name) is not None
    assert set(dsinga.__all__) <= set(dir(dsinga))
    assert not [name for name in dir(dsinga) if name.startswith("_") and not name.startswith("__")]


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="dsinga has no 'trian'; did you mean 'train'"):
        dsinga.trian  # noqa: B018


COMPLETE_IN_BASH = """
eval "$({dsinga} completion bash)"
COMP_WORDS=({words}) COMP_CWORD={place}
_dsinga_completion "{dsinga}"
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"), [("dsinga te", {"test"}), ("dsinga train --work", {"--workers", "--workspace"})]
)
def test_bash_completes_commands_and_options(words, offered, tmp_path):
    bash = shutil.which("bash") or pytest.skip("needs bash")
    program = tmp_path / "dsinga"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m dsinga "$@"\n')
    program.chmod(0o755)
    script = COMPLETE_IN_BASH.format(dsinga=program, words=words, place=len(words.split()) - 1)
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize(
    ("shell", "line"),
    [("zsh", "#compdef dsinga"), ("fish", "complete --no-files --command dsinga"), ("bash", "complete -o nosort")],
)
def test_each_shell_gets_its_script(shell, line):
    result = CliRunner().invoke(main_group, ["completion", shell], prog_name="dsinga")
    assert result.exit_code == 0
    assert line in result.stdout
    assert "_DSINGA_COMPLETE" in result.stdout


def test_other_shells_are_refused_with_those_that_there_are():
    result = CliRunner().invoke(main_group, ["completion", "tcsh"], prog_name="dsinga")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr
