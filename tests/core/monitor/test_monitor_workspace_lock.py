"""A workspace belongs to one run at a time; locks of processes that have ended do not count."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsinga.base.errors import UserError
from dsinga.monitor.workspace_lock import HOLDER, locked_workspace
from tests.support.refusals import refused

# Takes the lock of a workspace, says so or what the error is, and holds it until its input ends.
HOLD = """
import fcntl, sys
from pathlib import Path
from dsinga.base.errors import UserError
from dsinga.monitor import workspace_lock

if sys.argv[2] == "without flock":
    def refuse(*_):
        raise OSError("no locks")
    fcntl.flock = refuse
print("ready", flush=True)
sys.stdin.readline()
try:
    with workspace_lock.locked_workspace(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except UserError as error:
    print(error, flush=True)
"""


def refuse(*_: object) -> None:
    """As flock does on a file system without locks."""
    raise OSError("no locks")


class Holder:
    """A process that takes the lock when it is told to."""

    def __init__(self, workspace: Path, kind: str):
        command = [sys.executable, "-c", HOLD, str(workspace), kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.answer() == "ready"

    def go_on(self) -> None:
        self.process.stdin.write("\n")

    def answer(self) -> str:
        return self.process.stdout.readline().strip()


@pytest.fixture(params=["flock", "without flock"])
def holders(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Holder]]:
    """Three processes that are about to take the lock, where the file system has locks and where it has none."""
    if request.param == "without flock":
        monkeypatch.setattr(fcntl, "flock", refuse)
    holders = [Holder(tmp_path, request.param) for _ in range(3)]
    yield holders
    for holder in holders:
        holder.process.kill()
        holder.process.communicate(timeout=60)


@pytest.mark.process
def test_one_of_several_processes_gets_it_and_the_others_are_told_who(holders: list[Holder], tmp_path: Path) -> None:
    for holder in holders:
        holder.go_on()
    answers = [holder.answer() for holder in holders]
    assert sorted(answer == "held" for answer in answers) == [False, False, True]
    winner = holders[answers.index("held")]
    who = rf"process {winner.process.pid} on {socket.gethostname()}, since 20\d\d-"
    with pytest.raises(UserError, match=f"another run is writing to the workspace .*: {who}.*; give another workspace"):
        locked_workspace(tmp_path).__enter__()
    winner.process.send_signal(signal.SIGKILL)
    winner.process.wait(60)
    with locked_workspace(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["pid"] == os.getpid()
    assert not (tmp_path / HOLDER).exists()


def test_a_file_of_another_host_counts_only_where_there_are_no_locks(tmp_path: Path, monkeypatch) -> None:
    text = json.dumps({"host": "elsewhere", "pid": 1, "since": 0})
    (tmp_path / HOLDER).write_text(text)
    with locked_workspace(tmp_path):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / HOLDER).write_text(text)
    with pytest.raises(
        UserError, match=f"process 1 on elsewhere, since 19.*if that process has ended, delete .*{HOLDER}"
    ):
        locked_workspace(tmp_path).__enter__()


NONSENSE = ["", "null", "[" * 9999, '{"pid": "x", "since": 1}', '{"pid": 1, "since": 1e99}', "\0"]


@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_in_the_file_does_not_count_where_there_are_locks(tmp_path: Path, text: str) -> None:
    (tmp_path / HOLDER).write_text(text)
    with locked_workspace(tmp_path):
        (tmp_path / HOLDER).write_text(text)
        refused(lambda: locked_workspace(tmp_path).__enter__(), "another run is writing")
