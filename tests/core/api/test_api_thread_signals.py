"""Signals that end a program whose runs are in other threads than the main one."""

import signal
import subprocess
import sys

import pytest

from dsinga.checkpoint import latest
from tests.support.default_signals import default_signals

PROGRAM = """
import os, signal, sys, threading
import numpy as np
import dsinga
from dsinga import nn

face, number, workspaces = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
x = np.random.default_rng(0).normal(size=(640, 8)).astype(np.float32)
begun = [threading.Event() for _ in workspaces]

def start(workspace, event):
    model = nn.Sequential([nn.Input(8), nn.Dense(16, "tanh"), nn.Dense(1)])
    model.compile("adam", "mse")

    def tell(step, metrics):
        if step >= 40:
            event.set()

    if face == "submit":
        job = model.job(x, x[:, :1], epochs=1_000_000)
        dsinga.submit(job, workspace=workspace, extensions=[tell])
        return
    options = {"workers": 2, "progress": False} if face == "workers" else {"progress": False}
    fit = lambda: model.fit(x, x[:, :1], epochs=1_000_000, workspace=workspace, callbacks=tell, **options)
    threading.Thread(target=fit).start()

for arguments in zip(workspaces, begun):
    start(*arguments)
assert all(event.wait(60) for event in begun)
if os.fork() == 0:  # a child is ended by its signals
    os.kill(os.getpid(), number)
    threading.Event().wait(60)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == -number
os.kill(os.getpid(), number)
threading.Event().wait(60)
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("face", "count", "number"),
    [
        ("fit", 1, signal.SIGTERM),
        ("fit", 2, signal.SIGUSR1),
        ("workers", 1, signal.SIGHUP),
        ("submit", 1, signal.SIGTERM),
    ],
)
def test_runs_in_threads_end_in_order_before_the_signal_ends_the_program(face, count, number, tmp_path):
    folders = [tmp_path / str(run) for run in range(count)]
    with default_signals():
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, face, str(int(number)), *map(str, folders)],
            stderr=subprocess.PIPE, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert ended.returncode == -number, ended.stderr
    assert ended.stderr.count(f"{number.name}: training in threads ends after the rounds in flight") == 1
    for folder in folders:
        assert latest(folder / "checkpoint"), ended.stderr
        assert f"go on from {latest(folder / 'checkpoint')} with resume=True" in ended.stderr
