"""Commands that signals end: exit statuses, checkpoints, and the bits of the run that goes on."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga.checkpoint import latest, read_params
from dsinga.data import write_store
from dsinga.monitor import read_metrics
from tests.support.command_line import JOB, Dsinga
from tests.support.default_signals import default_signals
from tests.support.polling import wait_until

TRAIN = ["train", "job.conf", "--resume", "auto", "--set", "test_freq=100"]
ENDLESS = ["--set", "train_steps=1000000"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with job.conf and its stores."""
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        labels = rng.integers(0, 3, 100)
        write_store(tmp_path / f"{name}.zarr", [(rng.integers(0, 200, (100, 8)).astype(np.uint8), labels)])
    (tmp_path / "job.conf").write_text(JOB)
    return tmp_path


started: list[subprocess.Popen[Any]] = []


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """End the processes of a test that has failed: one that trains a million steps would slow the tests after it."""
    yield
    for process in started:
        process.kill()
        process.wait()
    started.clear()


def popen(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process, which ends with the test."""
    with default_signals():
        started.append(subprocess.Popen(command, **options))
    return started[-1]


def start(folder: Path, *arguments: str, steps: int = 1_000_000) -> subprocess.Popen[str]:
    """Start a command, and return when it trains."""
    command = [sys.executable, "-m", "dsinga", *TRAIN, *arguments, "--set", f"train_steps={steps}"]
    process = popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for_line(process, r"step [1-9]\d+/")
    return process


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> None:
    """Read what a command says until a line has ``pattern``."""
    lines = []
    while not lines or not re.search(pattern, lines[-1]):
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)


def go_on(dsinga: Dsinga, folder: Path, step: int, *arguments: str) -> None:
    """Run the command again until ``step``, and compare with an undisturbed run."""
    for more in ((), ("--workspace", "whole")):
        ended = dsinga(*TRAIN, *more, *arguments, "--set", f"train_steps={step}")
        assert ended.returncode == 0, ended.stderr
    params, expected = (read_params(folder / name) for name in ("work", "whole"))
    assert params.keys() == expected.keys()
    assert all((params[name] == expected[name]).all() for name in expected)
    rows, whole_rows = (
        [(row["step"], row["phase"], row["loss"]) for row in read_metrics(folder / name / "metrics.jsonl")]
        for name in ("work", "whole")
    )
    assert rows == whole_rows


def steps_done(err: str, sentence: str) -> int:
    """Return the steps that were done by the last line of what a command says: those of the checkpoint it names."""
    last = re.fullmatch(sentence, err.splitlines()[-1])
    assert last, err
    assert last[1] == last[2]
    return int(last[1])


def test_a_signal_ends_training_with_a_checkpoint_of_the_last_round(dsinga, folder):
    """``tests/faults/test_faults_cuts.py`` sends the others."""
    process = start(folder)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    command = " ".join([*TRAIN, *ENDLESS])
    said = rf"dsinga: terminated: (\d+) steps were done; go on from work/checkpoint/step(\d+) with dsinga {command}"
    steps = steps_done(err, said)
    assert not (folder / "work/running.json").exists()
    go_on(dsinga, folder, steps + 25)


@pytest.mark.slow
def test_a_second_sigint_leaves_at_once(folder):
    """The first one is deferred until the rounds in flight have ended, which here take minutes."""
    (folder / "slow.py").write_text(
        "import threading\nimport dsinga\nfrom dsinga.training import bp\n\n\n"
        '@dsinga.register("algorithm", "Slow")\n'
        "def slow(net, values, records, ctx, push):\n"
        "    if ctx.step == 400:\n"
        '        open("waits", "w").close()\n'
        "        threading.Event().wait(100)\n"
        "    return bp(net, values, records, ctx, push)\n"
    )
    with open(folder / "job.conf", "a") as file:
        file.write('train_one_batch { user_alg: "Slow" }\n')
    process = start(folder, "--import", "slow.py")
    wait_until((folder / "waits").exists)
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "SIGINT: training ends after the rounds in flight")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_waits_for_workers_ends_at_once(folder, number):
    scheduler = popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", "s.json", "--port", "0",
         "--no-dashboard"], cwd=folder, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        command = [sys.executable, "-m", "dsinga", *TRAIN, "--scheduler-file", "s.json"]
        process = popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        wait_for_line(process, "waiting for others")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (75 if number == signal.SIGTERM else 130), err
        assert not (folder / "work").exists()
    finally:
        scheduler.kill()
        scheduler.wait()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_goes_on_when_its_scheduler_is_started_again(dsinga, folder):
    cluster = start_cluster(folder)
    more = ["--scheduler-file", "s.json", "--workers", "2", "--retry", "--set", "checkpoint_freq=30"]
    process = start(folder, *more, steps=3000)
    for each in cluster:
        each.kill()
        each.wait()
    wait_for_line(process, "waiting for a scheduler at s.json")  # whose file is still that of the lost one
    cluster = start_cluster(folder)
    try:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        go_on(dsinga, folder, 3000, *more)
    finally:
        for each in cluster:
            each.kill()
            each.wait()


def start_cluster(folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start a scheduler with a file, and two Dask workers that read it."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", "s.json", "--port", "0"]
    (folder / "s.json").unlink(missing_ok=True)
    processes = [popen([*command, "--no-dashboard"], cwd=folder, stderr=subprocess.DEVNULL)]
    wait_until((folder / "s.json").exists)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", "s.json", "--no-nanny"]
    for _ in range(2):
        arguments = [*worker, "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"]
        processes.append(popen(arguments, cwd=folder, stderr=subprocess.DEVNULL))
    return processes


@pytest.mark.ci
def test_a_terminal_that_is_closed_ends_training_with_a_checkpoint(folder):
    """SIGHUP comes, and nothing can be written to the terminal any more."""
    master, slave = os.openpty()
    command = [sys.executable, "-m", "dsinga", *TRAIN, *ENDLESS]
    process = popen(
        [sys.executable, "-c", IN_TERMINAL, *command], cwd=folder, stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        shown = b""
        while not re.search(rb"[1-9]\d*/1000000", shown):
            shown += os.read(master, 1 << 16)
    finally:
        os.close(master)
    assert process.wait(60) == 75
    path = latest(folder / "work/checkpoint")
    assert all(np.isfinite(value).all() for value in read_params(path).values())
    assert not (folder / "work/running.json").exists()


# Makes its standard input the terminal of its session, and becomes a command.
IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)

PROGRAM = """
import signal
import dsinga

if __name__ == "__main__":
    HANDLERS
    job = dsinga.load("job.conf", ["train_steps=TRAIN_STEPS", "test_freq=100"])
    print("before", flush=False)
    try:
        dsinga.train(job, workspace="work", resume="auto")
    finally:
        print("after", flush=False)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
"""


def start_program(folder: Path, handlers: str = "") -> subprocess.Popen[str]:
    """Write a program that trains, start it, and return when it trains."""
    command, pipe = write_program(folder, handlers), subprocess.PIPE
    process = popen(command, cwd=folder, stderr=pipe, stdout=pipe, text=True)
    wait_for_line(process, r"step [1-9]\d+/")
    return process


def write_program(folder: Path, handlers: str = "", steps: int = 1_000_000) -> list[str]:
    """Write a program that trains, and return its command."""
    text = PROGRAM.replace("HANDLERS", handlers).replace("TRAIN_STEPS", str(steps))
    (folder / "program.py").write_text(text)
    return [sys.executable, "program.py"]


@pytest.mark.ci
def test_a_signal_ends_a_program_after_a_checkpoint(folder):
    """It ends the program as by default: with the status of the signal, and without what would come after."""
    process = start_program(folder)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err
    assert out == "before\n"
    said = r"the run is ended: (\d+) steps were done; go on from work/checkpoint/step(\d+) with resume=True"
    steps = steps_done(err, said)
    assert not (folder / "work/running.json").exists()
    command = write_program(folder, steps=steps + 25)
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "before\nafter\n"), ended.stderr


@pytest.mark.slow
def test_a_handler_of_the_program_is_left_to_it(folder):
    """A signal that the program ignores does not end it, and its own handler is called after the checkpoint."""
    handlers = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "    signal.signal(signal.SIGTERM, lambda number, frame: print('mine', flush=True) or exit(3))"
    )
    process = start_program(folder, handlers)
    process.send_signal(signal.SIGHUP)
    wait_for_line(process, r"step [1-9]\d+/")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "before\nmine\nafter\n"), err
    assert latest(folder / "work/checkpoint") is not None


@pytest.mark.ci
def test_the_error_of_the_run_is_raised_after_a_handler_that_returns(folder):
    process = start_program(folder, "signal.signal(signal.SIGTERM, lambda number, frame: print('mine', flush=True))")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "before\nmine\nafter\n"), err
    said = r"dsinga\.base\.errors\.Cancelled: the run was cancelled; (\d+) steps were done; go on from "
    assert steps_done(err, said + r"work/checkpoint/step(\d+) with resume=True")


def run_script(text: str) -> str:
    """Run a program that must succeed, and return what it prints."""
    process = popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_a_signal_whose_exception_is_discarded_is_raised_at_the_end_and_blocks_no_others():
    text = """
import signal
from dsinga.base.errors import Terminated
from dsinga.base.termination import raised_terminations

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

try:
    with raised_terminations():
        Finalized()
        try:
            signal.raise_signal(signal.SIGHUP)
        except Terminated:
            signal.raise_signal(signal.SIGTERM)
            print("cleaned up")
        print("went on")
except Terminated as error:
    print(error)
"""
    assert run_script(text) == "cleaned up\nwent on\nthe run was complete\n"


def test_signals_for_which_the_program_has_a_handler_are_left_to_it():
    """Python does not know the handler of ``faulthandler``. What has ended a command is ignored while it exits."""
    text = """
import faulthandler
import signal
import sys
from dsinga.base.errors import Terminated
from dsinga.loop.cancellation import Cancellation, deferred_interrupts
from dsinga.base.termination import ignore_terminations, raised_terminations

faulthandler.register(signal.SIGUSR1, sys.stdout)
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda number, frame: print("mine", flush=True))
cancellation = Cancellation()
try:
    with raised_terminations(), deferred_interrupts(cancellation):
        cancellation.ends_in_order = True
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGQUIT)
        signal.raise_signal(signal.SIGALRM)
        print("went on" if not cancellation.event.is_set() else "cancelled", flush=True)
        signal.raise_signal(signal.SIGUSR2)
        print("cancelled" if cancellation.event.is_set() else "went on", flush=True)
except Terminated:
    print("terminated", flush=True)
signal.raise_signal(signal.SIGUSR1)
ignore_terminations()
signal.raise_signal(signal.SIGXCPU)
signal.raise_signal(signal.SIGUSR1)
"""
    out = run_script(text)
    assert out.count("Current thread") == 3
    assert "mine\nwent on\ncancelled\nterminated\n" in out
