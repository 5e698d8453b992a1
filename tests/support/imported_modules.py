"""What training the digits imports of dsinga, and in which of its files a function runs.

``python -m tests.support.imported_modules`` prints these files.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "datasets" / "digits"

# Bodies of modules and classes do not count. Functions that run during an import, such as decorators, do.
RUNS = """
import sys, threading
RUNS = set()

def note_file(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & 1 and frame.f_code.co_name[0] != "<":
        RUNS.add(frame.f_code.co_filename)

threading.setprofile(note_file)
sys.setprofile(note_file)
"""
COMMAND = """
import contextlib, runpy, sys
sys.argv[1:] = ["train", "job.conf", "--set", "train_steps=2", "--workspace", WORKSPACE]
with contextlib.suppress(SystemExit):
    runpy.run_module("dsinga", run_name="__main__")
"""
NN = """
import numpy as np
from dsinga import nn

x, labels = np.random.default_rng(0).random((300, 64), np.float32), np.arange(300) % 10
model = nn.Sequential([nn.Dense(32, activation="relu"), nn.Dense(10)])
model.compile(nn.SGD(0.1), loss=nn.SoftmaxLoss(), metrics=["accuracy"])
model.fit(x, labels, epochs=1, batch_size=256, verbose=0)
model.predict(x[:8])
"""
PRINT = """
sys.setprofile(None)
print("modules:", *sorted(sys.modules), "files:", *sorted(RUNS), sep="\\n")
"""


def imported(program: str, workspace: Path) -> tuple[list[str], list[str]]:
    """Run a program in the folder of the digits; return the modules that it imports, and dsinga's files that it runs.

    A file counts among the latter if one of its functions was called.
    """
    code = f"WORKSPACE = {str(workspace)!r}\n{RUNS}{program}{PRINT}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=DIGITS, env=environment, timeout=100
    )
    assert process.returncode == 0, process.stderr
    modules, files = process.stdout.partition("modules:\n")[2].split("files:\n")
    return modules.splitlines(), [file for file in files.splitlines() if Path(file).is_relative_to(ROOT / "dsinga")]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for program in (COMMAND, NN):
            print(*imported(program, Path(folder, "w"))[1], sep="\n", end="\n\n")
