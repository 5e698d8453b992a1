"""docs/dev/paper-figures.md has every figure of the paper once, and names commands and files that exist."""

import re
from pathlib import Path

import click
import pytest

from dsinga.commands.cli import main_group

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dev" / "paper-figures.md").read_text(encoding="utf-8")
FIGURES = 21


def test_every_figure_has_a_row():
    cells = re.findall(r"^\| ([\d(][^|]*) \|", PAGE, re.MULTILINE)
    assert {int(number) for cell in cells for number in re.findall(r"\d+", cell)} == set(range(1, FIGURES + 1))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b(?:datasets|notebooks|tests|tools)/[\w/.-]+\.\w+", PAGE))))
def test_files_of_commands_exist(path):
    assert (ROOT / path).is_file() or path == "datasets/X/README.md"


@pytest.mark.parametrize("module", sorted(set(re.findall(r"-m (tools\.benchmarks[\w.]*)", PAGE))))
def test_modules_of_commands_exist(module):
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_commands_of_dsinga_and_their_options_exist():
    used = re.findall(r"dsinga (train|show|plan)\b([^`\n]*)", PAGE)
    assert {name for name, _ in used} == {"train", "show", "plan"}
    for name, arguments in used:
        command = main_group.get_command(None, name)
        options = {option for param in command.params if isinstance(param, click.Option) for option in param.opts}
        assert set(re.findall(r"--[\w-]+", arguments)) <= options
