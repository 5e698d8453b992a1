"""What a program imports of dsinga: ``python -m tests.support.imported_modules`` writes the list for the digits.

The test of what training the digits imports names what is not in that list, when there is too much.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTED = ROOT / "tests" / "core" / "digits_imports.txt"
DIGITS = ROOT / "datasets" / "digits"

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
import sys
print(*sorted(sys.modules), sep="\\n")
"""


def imported(program: str, workspace: Path) -> list[str]:
    """Run a program in the folder of the digits, and return the names of all modules that it has imported."""
    code = f"WORKSPACE = {str(workspace)!r}\n{program}{PRINT}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=DIGITS, env=environment, timeout=100
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def lines_of(names: list[str]) -> dict[str, int]:
    """Return the numbers of lines of those modules that are of dsinga."""
    return {name: _lines(name) for name in names if name.split(".")[0] == "dsinga"}


def _lines(name: str) -> int:
    path = ROOT.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return len(file.read_text("utf-8").splitlines())


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        modules = [lines_of(imported(program, Path(folder, "w"))) for program in (COMMAND, NN)]
    LISTED.write_text("\n".join(sorted({*modules[0], *modules[1]})) + "\n", "utf-8")
    print(*(f"{len(lines)} files, {sum(lines.values())} lines" for lines in modules), sep="\n")
