"""A notebook's stop button: SIGINT for the process and its children, the Dask workers of ``Client()``, ends the run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
from distributed import Client
from dsinga import nn
if __name__ == "__main__":
    x = np.ones((64, 6), "float32")
    model = nn.Sequential([nn.Input(6), nn.Dense(3)])
    model.compile("adam", "mse")
    first = model.get_weights()
    say = nn.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print("GO", flush=True))
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        try:
            model.fit(x, x[:, :3], epochs=10**6, client=client, callbacks=say, verbose=0)
        except KeyboardInterrupt:
            changed = [(a != b).any() for a, b in zip(first, model.get_weights())]
            model.fit(x, x[:, :3], client=client, verbose=0)
            print("KEPT", all(changed), len(client.scheduler_info()["workers"]))
"""


@pytest.mark.ci
@pytest.mark.process
def test_the_model_keeps_what_was_trained_and_the_workers_go_on(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert "GO" in process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            assert "KEPT True 1" in process.communicate(timeout=100)[0]
        finally:
            process.kill()
