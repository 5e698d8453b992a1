"""Executing the blocks of a page: Python, and commands whose output is compared with what the page shows.

A fence's first word says what to do with a block: ``python`` is executed (the blocks of a page share their names);
``console`` holds commands after ``$`` and, below each, what it prints, where ``...`` stands for anything; and
``file=NAME``, after any language, writes the block to a file. Other blocks are only shown.
``<!-- begins with PAGE -->`` stands for the blocks above the first heading of another page, to whose job a page links.

``python -m tests.support.executed_pages PAGE FOLDER`` executes a page where no test could run: with what the page says
to install, and with the commands that are on the path.
"""

import contextlib
import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BEGINNING = re.compile(r"^<!-- begins with (\S+) -->$", re.MULTILINE)
FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    file: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        language, _, file = match["info"].partition(" file=")
        found.append(Block(language, file.strip(), match["text"], text.count("\n", 0, match.start()) + 2))
    return found


def command_environment(folder: Path, cache: Path, module: Sequence[str] = (sys.executable, "-m")) -> dict[str, str]:
    """Return an environment in which ``dsinga``, ``dask``, ``python`` and ``pip`` are those under test.

    The package need not be installed. ``pip`` installs nothing: what pages need is there, or pip fails. ``folder``
    receives these programs, ``cache`` measured rates of layers; ``module`` has the words for ``python -m``.
    """
    run, python = f"exec {shlex.join(module)}", f"exec {sys.executable}"
    programs = {
        "dsinga": f'{run} tests.support.idle_dsinga "$@"',
        "dask": f'{run} dask "$@"',
        "pip": f'{python} -m pip "$@"',
        "python": f'if [ "$1" = -m ]; then shift; {run} "$@"; fi; {python} "$@"',
    }
    for name, command in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    variables = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "DASK_DSINGA__CACHE": str(cache)}
    # Else each Dask worker of a command would import Dask anew.
    variables["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"
    # A forked process has imported modules that pytest would rewrite.
    variables["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestAssertRewriteWarning"
    return {**os.environ, **variables, "PIP_NO_INDEX": "1"}


def run_commands(
    block: Block, where: str, shell: dict[str, str], folder: Path, background: contextlib.ExitStack
) -> None:
    """Run the commands of a block and compare what they print; ``background`` ends the processes that they leave."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=shell,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        background.callback(end_group, process.pid)
        printed, _ = process.communicate(timeout=100)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        matches = doctest.OutputChecker().check_output(expected, printed, flags)
        assert matches, f"{where}: `{command}` should print\n{expected}\nbut prints\n{printed}"
        assert process.returncode == 0 or expected.strip() != "...", f"{where}: `{command}` fails with\n{printed}"


def end_group(leader: int) -> None:
    """End the processes that a command has left in the background."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGTERM)


def execute(page: Path, folder: Path, shell: dict[str, str]) -> None:
    """Execute the blocks of a page in ``folder``, which is the working directory."""
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    beginnings = [
        (page.parent / name).read_text(encoding="utf-8").partition("\n## ")[0] for name in BEGINNING.findall(text)
    ]
    with contextlib.ExitStack() as background:
        for block in [block for part in (*beginnings, text) for block in blocks(part)]:
            where = f"{page.relative_to(ROOT)}:{block.line}"
            if block.file:
                (folder / block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                padded = "\n" * (block.line - 1) + block.text  # so that a traceback shows the page's line
                exec(compile(padded, str(page), "exec"), names)
            elif block.language == "console":
                run_commands(block, where, shell, folder, background)


def main(page: str, folder: str) -> None:
    """Execute a page in ``folder``, with this process's environment."""
    path = Path(page).resolve()
    os.chdir(folder)
    execute(path, Path.cwd(), dict(os.environ))


if __name__ == "__main__":
    main(*sys.argv[1:])
