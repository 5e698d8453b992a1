"""Commands whose standard streams are closed, full or not UTF-8, and which may not write where they are told to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dsinga.data import write_store
from tests.support.small_disk import files_of_at_most

JOB = """name: "blöbs" train_steps: 2 disp_freq: 1
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "x.zarr" batchsize: 10 shape: 4 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
# With the status that each has where its streams are as usual.
COMMANDS = {
    "--version": 0, "completion bash": 0, "example digits NEW": 0, "train job.conf --workspace NEW": 0,
    "train none.conf": 2, "test job.conf --checkpoint work/checkpoint": 0, "show job.conf --svg NEW": 0,
    "predict job.conf --checkpoint work/checkpoint --layer ip --out NEW": 0, "find-lr job.conf --steps 10": 0,
    "bench job.conf --steps 2": 0, "data info x.zarr": 0, "data verify x.zarr": 0,
}  # fmt: skip
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job, its store and a workspace in which it was trained."""
    folder = tmp_path_factory.mktemp("streams")
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    write_store(folder / "x.zarr", [(x, (x[:, 0] > 0).astype(np.int64))])
    (folder / "job.conf").write_text(JOB, encoding="utf-8")
    status, _, errors = run(folder, "train job.conf --workspace work <&- >&- 2>&-")
    assert (status, errors) == (0, "")
    return folder


def run(folder: Path, line: str, **environment: str) -> tuple[int, str, str]:
    """Run dsinga by a line of bash; return the status, the output and the errors."""
    command = ["bash", "-c", f"exec {sys.executable} -m dsinga {line}"]
    ran = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=90)
    output, errors = ran.stdout.decode(), ran.stderr.decode()
    assert "Traceback" not in output + errors, errors
    assert "Exception ignored" not in errors
    return ran.returncode, output, errors


@pytest.mark.ci
def test_streams_that_are_closed_full_or_ascii_change_no_status(folder: Path) -> None:
    assert (folder / "work/checkpoint/step2").is_dir(), "trained without any stream"
    full = "dsinga: the output cannot be written: No space left on device\n"
    status, _, errors = run(folder, "test job.conf --checkpoint work/checkpoint >/dev/full")
    assert (status, errors) == (1, full)
    status, output, errors = run(folder, "train job.conf --workspace ascii", **ASCII)
    assert (status, output[:13]) == (0, "Result of 'bl"), errors
    (folder / "other.conf").write_text(JOB.replace("x.zarr", "ö.zarr"), encoding="utf-8")
    status, _, errors = run(folder, "show other.conf", **ASCII)
    why = "cannot be the name of a file here, where names are in ascii; set LC_ALL=C.UTF-8"
    assert (status, errors) == (2, f"dsinga: '\\xf6.zarr' {why}\n")


@pytest.mark.ci
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_end_in_order_whatever_their_streams_are(folder: Path, tmp_path: Path, command: str) -> None:
    numbers: Iterator[int] = iter(range(9))

    def ran(redirection: str, **environment: str) -> tuple[int, str, str]:
        return run(folder, f"{command.replace('NEW', str(tmp_path / str(next(numbers))))} {redirection}", **environment)

    expected = COMMANDS[command]
    for redirection, environment in (("<&- >&- 2>&-", {}), ("2>/dev/full", ASCII)):
        assert ran(redirection, **environment)[0] == expected, redirection
    status, _, errors = ran(">/dev/full")
    assert status == (expected or 1)
    assert errors.splitlines()[-1].startswith("dsinga: ")


NOWHERE = {
    "/proc/x": "No such file",
    "file": "exists and is not an empty",
    "file/x": "Not a dir",
    "w" * 300: "too long",
}


@pytest.mark.parametrize("place", NOWHERE)
def test_an_example_is_not_written_where_nothing_may_be(tmp_path: Path, dsinga_here, place: str) -> None:
    (tmp_path / "file").touch()
    status, errors = dsinga_here("example", "digits", place)
    assert (status, errors[:8], errors.count("\n")) == (2, "dsinga: ", 1)
    assert NOWHERE[place] in errors
    assert "; name a" in errors


def test_an_example_that_a_disk_has_no_room_for_leaves_nothing(tmp_path: Path, dsinga_here) -> None:
    with files_of_at_most(1000):
        status, errors = dsinga_here("example", "digits", "new")
    assert status == 2
    assert "the example cannot be written to new: File too large; name a folder" in errors
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def dsinga_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command line in this process, in an empty folder; return the status and the errors."""
    from dsinga.commands.cli import main

    def run_here(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dsinga", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    return run_here


def test_training_in_python_needs_no_standard_error(folder: Path, monkeypatch) -> None:
    import dsinga

    monkeypatch.setattr(sys, "stderr", None)
    result = dsinga.train(dsinga.load(folder / "job.conf"), data_root=str(folder), progress=True)
    assert result.history[-1]["step"] == 2
