"""What the documentation shows is executed: each page of docs/, block after block, in a folder of its own.

A fence's first word says what to do with a block: ``python`` is executed (the blocks of a page share their names);
``console`` holds commands after ``$`` and, below each, what it prints, where ``...`` stands for anything; and
``file=NAME``, after any language, writes the block to a file. Other blocks are only shown. A picture of docs/images
that the page's blocks draw too, under the same name, must be what they draw.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import dask.config
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
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


@pytest.fixture
def shell(tmp_path) -> dict[str, str]:
    """The environment of commands: ``dsinga``, ``dask`` and ``python`` are those under test, installed or not."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in {"dsinga": ["-m", "dsinga"], "dask": ["-m", "dask"], "python": []}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "DASK_DSINGA__CACHE": str(tmp_path)}


def run_commands(block: Block, where: str, shell: dict[str, str], folder: Path) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        done = subprocess.run(
            command,
            shell=True,
            executable="/bin/bash",
            cwd=folder,
            env=shell,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        matches = doctest.OutputChecker().check_output(expected, done.stdout, flags)
        assert matches, f"{where}: `{command}` should print\n{expected}\nbut prints\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path, shell, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setitem(dask.config.config, "dsinga", {"cache": str(tmp_path)})
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    for block in blocks(text):
        where = f"docs/{page.name}:{block.line}"
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            padded = "\n" * (block.line - 1) + block.text  # so that a traceback shows the page's line
            exec(compile(padded, str(page), "exec"), names)
        elif block.language == "console":
            run_commands(block, where, shell, folder)
    for picture in re.findall(r"\]\(images/([^)]+)\)", text):
        drawn, kept = folder / picture, page.parent / "images" / picture
        assert not drawn.exists() or drawn.read_text() == kept.read_text(), f"out of date: cp {drawn} {kept}"


def test_the_job_in_the_readme_learns(monkeypatch):
    import dsinga

    monkeypatch.chdir(ROOT / "datasets" / "digits")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (job,) = [block.text for block in blocks(text) if block.text.startswith('name: "')]
    result = dsinga.train(dsinga.loads(job, "README.md"), progress=False)
    assert result.history[-1, "accuracy"] > 0.9


def test_the_python_in_the_readme_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = [
        block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == "python"
    ]
    names: dict[str, Any] = {}
    exec(block.text, names)
    assert names["result"].history[-1, "accuracy"] > 0.9
    assert names["scores"].shape == (360, 10)


def test_the_commands_in_the_readme_have_these_options():
    import click

    from dsinga.cli import main_group

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = "".join(block.text for block in blocks(text) if block.language == "sh")
    lines = re.findall(r"^dsinga (.*)$", commands, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        command: click.Command = main_group
        words = shlex.split(line, comments=True)
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        command.make_context("dsinga", words)  # raises click.UsageError


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / "docs" / "dev").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda page: page.stem,
)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_answer_one_question_in_at_most_150_lines(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 150
