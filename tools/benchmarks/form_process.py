"""The process in which a library trains a case in one of its forms, turn by turn."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tools.benchmarks.cases import Case
from tools.benchmarks.peers import LIBRARIES, PEERS

TURN_SECONDS = 600  # at most, for a turn
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class FormProcess:
    """A process that trains a case, on as many cores as there are workers, and waits between its turns.

    Forms of several workers begin anew in each turn, since their processes end after one.

    Args:
        form: the name in PEERS.
        python: the interpreter.
        name: the name of the case.
        case: the case.
        steps: the measured iterations of a turn.
        root: the checkout, by default the working directory.
        preload: a library that the process loads first, such as a memory allocator.
        module: the module of this folder that measures, by default that of the form's library.
    """

    def __init__(
        self,
        form: str,
        python: str,
        name: str,
        case: Case,
        steps: int,
        root: Path | None = None,
        preload: str = "",
        module: str = "",
    ):
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: case.workers]))
        module = module or LIBRARIES[PEERS[form].library].module
        self._command = ["taskset", "-c", cores, python, "-m", f"tools.benchmarks.{module}", name, str(steps)]
        self._environment = {**os.environ, **THREADS, **PEERS[form].environment}
        if preload:
            self._environment["LD_PRELOAD"] = preload
        if root:
            self._environment["PYTHONPATH"] = str(root)
        self._root, self._lives_on = root, case.workers == 1
        self._process: subprocess.Popen[bytes] | None = None
        self._messages = tempfile.TemporaryFile()

    def turn(self) -> dict[str, float]:
        """Run a turn and return its figures; raise RuntimeError with the message of its exception where it fails."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                env=self._environment,
                cwd=self._root,
                bufsize=0,
            )
        else:
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
        line = self._read_line(self._process)
        if not self._lives_on:
            self.close()
        return json.loads(line)

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the next line of JSON that the process prints."""
        assert process.stdout is not None
        while select.select([process.stdout], [], [], TURN_SECONDS)[0]:
            line = process.stdout.readline()
            if line.startswith(b"{"):
                return line
            if not line:
                process.wait(TURN_SECONDS)
                self._messages.seek(0)
                raise RuntimeError(reason(self._messages.read().decode(errors="replace")))
        process.kill()
        raise RuntimeError(f"took more than {TURN_SECONDS} s")

    def close(self) -> None:
        """End the process: no further turn is asked for."""
        if self._process is not None:
            self._process.communicate(timeout=TURN_SECONDS)
            self._process = None

    def __enter__(self) -> FormProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self._messages.close()


def take_turns(
    processes: Mapping[str, FormProcess], figures: dict[str, list[dict[str, float]]], left_out: dict[str, str]
) -> None:
    """Let each form take a turn, and append its figures; one that fails is left out from then on, with the reason."""
    for form, process in processes.items():
        if form not in left_out:
            try:
                figures.setdefault(form, []).append(process.turn())
            except RuntimeError as error:
                left_out[form] = str(error)
                figures.pop(form, None)


def reason(stderr: str) -> str:
    """Return the last message of an exception in what a process has printed, or else its last line."""
    messages = re.findall(r"^[\w.]+: .+", stderr, re.MULTILINE) or stderr.strip().splitlines()
    return messages[-1] if messages else "ended without a message"
