"""The examples that come with the package: written by ``dsinga example``, part of a wheel, copied to datasets/."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsinga import api
from dsinga.base.errors import UserError
from dsinga.base.version import __version__
from dsinga.commands.cli import main_group
from dsinga.commands.data import EXAMPLE_NAMES, EXAMPLES

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.is_file() and path.suffix != ".pyc")


def test_the_digits_are_written_and_train(tmp_path: Path):
    folder = tmp_path / "new" / "digits"
    done = CliRunner().invoke(main_group, ["example", "digits", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.endswith(f"train it with:\n  dsinga train {folder}/job.conf\n")
    result = api.train(str(folder / "job.conf"), epochs=1, progress=False)
    assert result.step == 23  # of 64 records: 1437
    assert result.history[-1, "accuracy"] > 0.5


def test_a_folder_with_files_is_refused(tmp_path: Path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        CliRunner().invoke(main_group, ["example", "digits", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] in EXAMPLE_NAMES], ids=str)
def test_datasets_have_copies_of_the_examples(path: Path):
    """Links to them would lead nowhere in a copy of a folder of datasets/."""
    copy = ROOT / "datasets" / path
    assert copy.resolve() == ROOT.resolve() / "datasets" / path
    assert copy.read_bytes() == (EXAMPLES / path).read_bytes()


def test_a_wheel_has_all_files_of_the_package_and_its_version(tmp_path: Path):
    command = [sys.executable, "-W", "ignore", "-c", "import setuptools; setuptools.setup()", "-q", "bdist_wheel"]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE", "dsinga"):
        if (ROOT / name).exists():
            (source / name).symlink_to(ROOT / name)
    done = subprocess.run([*command, "-d", str(tmp_path)], cwd=source, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"dsinga/examples/{path.as_posix()}" for path in FILES} <= names
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dsinga").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {
        name for name in names if name.startswith("dsinga/")
    }
    assert wheel.name.split("-")[1] == __version__
