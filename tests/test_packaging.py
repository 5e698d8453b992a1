"""What the package declares about itself: dependencies, extras, the version, the parts of CI."""

import re
import sys
import tomllib
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from dsinga.base.version import __version__

ROOT = Path(__file__).parents[1]
CONFIG = ConfigParser()
CONFIG.read(ROOT / "setup.cfg", encoding="utf-8")
EXTRAS = CONFIG["options.extras_require"]
FOR_DEVELOPERS = {"test", "lint", "docs", "notebook"}
# The packages of modules that the tests' environment lacks.
ELSEWHERE = {"cupy": "cupy-cuda12x", "cudnn": "nvidia-cudnn-frontend"}


def names(requirements: str) -> set[str]:
    """Return the names of the packages in lines of requirements, as PyPI compares them."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r"^[\w.-]+", requirements, re.MULTILINE)}


BASE = names(CONFIG["options"]["install_requires"])
OF_USERS = BASE.union(*(names(text) for extra, text in EXTRAS.items() if extra not in FOR_DEVELOPERS))


def imported(path: Path) -> set[str]:
    """Return the top-level modules that a file imports, wherever in it, without dsinga and the standard library.

    Neither is IPython among them, which is imported in notebooks only, where it is.
    """
    found = re.findall(r"^ *(?:from (\w+)[\w.]* import |import (\w+))", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {name for names in found for name in names} - sys.stdlib_module_names - {"", "dsinga", "IPython"}


def test_what_the_package_imports_is_declared():
    distributions = packages_distributions()
    undeclared = {}
    for path in (ROOT / "dsinga").rglob("*.py"):
        allowed = OF_USERS | names(EXTRAS["test"]) if "testing" in path.parts else OF_USERS
        for module in imported(path):
            packages = names("\n".join(distributions.get(module, [ELSEWHERE.get(module, module)])))
            if not packages & allowed:
                undeclared[module] = path.relative_to(ROOT).as_posix()
    assert not undeclared, "name their packages in setup.cfg and environment.yml"


def test_the_page_on_installing_names_every_extra_and_what_it_brings():
    page = (ROOT / "docs" / "howto" / "install.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (`.+?) \| (.+?) \|", page, re.MULTILINE))
    documented = {extra: brings for cell, brings in rows.items() for extra in re.findall(r"`([\w-]+)`", cell)}
    assert documented.keys() == EXTRAS.keys()
    for extra in EXTRAS.keys() - FOR_DEVELOPERS:
        assert names("\n".join(documented[extra].split(", "))) == names(EXTRAS[extra]), extra


def test_the_version_is_that_of_the_package_everywhere():
    assert CONFIG["metadata"]["version"] == "attr: dsinga.base.version.__version__"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__


def test_the_public_workflow_calls_parts_of_ci_that_exist():
    (parts,) = re.findall(r"^parts=\((.*)\)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["check"]["strategy"]["matrix"]
    called = {*matrix["part"], *(entry["part"] for entry in matrix["include"])}
    assert called == set(parts.split()) - {"data", "slurm"}
    versions = {*matrix["python"], *(entry["python"] for entry in matrix["include"])}
    prefix = "Programming Language :: Python :: "
    classifiers = CONFIG["metadata"]["classifiers"].split("\n")
    assert {f"{prefix}{version}" for version in versions} == {
        text for text in classifiers if re.match(f"{prefix}3[.]", text)
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_forms_for_issues_have_what_a_host_needs(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    identifiers = [entry["id"] for entry in form["body"] if entry["type"] != "markdown"]
    assert len(set(identifiers)) == len(identifiers) > 0


def test_ruff_leaves_out_what_programs_write_also_where_pre_commit_names_it():
    settings = tomllib.loads((ROOT / "ruff.toml").read_text(encoding="utf-8"))
    assert settings["force-exclude"]
    assert "*.ipynb" in settings["extend-exclude"]
