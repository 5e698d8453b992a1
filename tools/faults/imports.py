"""Damaged source files of the importers. They have no checksums: only tracebacks, hangs and other crashes count."""

from __future__ import annotations

import json
import random as random_module
import shutil
from pathlib import Path

from tests.support.data_sources import SOURCES
from tools.faults.damage import copy_tree, damage_source
from tools.faults.verdicts import run_dsinga, say_damage


def create(folder: Path) -> None:
    """Write the sources of every importer, each in a folder with the command that imports it."""
    for name, make in SOURCES.items():
        (folder / name / "source").mkdir(parents=True)
        source = make(folder / name / "source")
        options = []
        for option, value in source.options.items():
            flags = {"has_label": "--no-label", "label_columns": "--label-columns"}
            flag = flags.get(option, f"--{option.replace('_', '-')}")
            options += [flag] if isinstance(value, bool) else [flag, str(value)]
        path = str(source.path.relative_to(folder / name))
        (folder / name / "arguments.json").write_text(json.dumps([source.kind, path, "out.zarr", *options]))
    shutil.rmtree(folder / "lmdb", ignore_errors=True)


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Damage a copy of the source of an importer, import it and return the status."""
    name = random.choice(sorted(SOURCES))
    copy_tree(original / name, folder)
    say_damage(f"{name}: {damage_source(random, folder / 'source', 0.8)}")
    arguments = json.loads((folder / "arguments.json").read_text())
    return run_dsinga(["data", "import", *arguments])
