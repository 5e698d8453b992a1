"""Runs the tests of the core and of the cluster in a copy of the checkout that lacks add-ons.

``python -m tools.without_addons [ADDON ...] [-- ARGUMENT ...]``: without all of them, or those named, as
``dsinga.addons.fields``; arguments are pytest's, by default ``tests/core tests/cutting tests/cluster``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("setup.cfg", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml")
FACES = ("convert", "estimators", "models", "rl")  # add-ons where users expect them


def addons() -> list[str]:
    """Return the names of all add-ons that can be taken out, as dsinga.addons.fields and dsinga.rl."""
    files = sorted((ROOT / "dsinga" / "addons").iterdir())
    names = [file.stem for file in files if file.suffix == ".py" or (file / "__init__.py").exists()]
    return [*(f"dsinga.addons.{name}" for name in names if name != "__init__"), *(f"dsinga.{face}" for face in FACES)]


def copy_checkout(folder: Path) -> Path:
    """Write a copy of the checkout, with links to its files, and return its folder."""
    for name in ("dsinga", "tests", "tools", "datasets", "docs", "notebooks", *FILES):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, copy_function=_link, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            _link(ROOT / name, folder / name)
    return folder


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def path_of(checkout: Path, addon: str) -> Path:
    """Return the folder or file of an add-on in a checkout."""
    path = checkout.joinpath(*addon.split("."))
    return path if path.is_dir() else path.with_suffix(".py")


def run(checkout: Path, command: Iterable[str]) -> int:
    """Run a command in a checkout with its package, and return its status."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return subprocess.run([sys.executable, *command], cwd=checkout, env=environment).returncode


def main(arguments: list[str]) -> int:
    """Make the copy, take the add-ons out, and run the tests."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, tests = arguments[:cut] or addons(), arguments[cut + 1 :] or ["tests/core", "tests/cutting", "tests/cluster"]
    if unknown := set(names) - set(addons()):
        sys.exit(f"{', '.join(sorted(unknown))}: no such add-on; these are {', '.join(addons())}")
    with tempfile.TemporaryDirectory() as folder:
        checkout = copy_checkout(Path(folder))
        for name in names:
            path = path_of(checkout, name)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return run(checkout, ["-m", "pytest", "-q", *tests])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
