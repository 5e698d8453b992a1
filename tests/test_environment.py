"""environment.yml: conda installs what pip installs for the package, its notebooks, its tests and the lint step."""

import re
from configparser import ConfigParser
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
# Packages whose name on conda-forge is not that on PyPI.
CONDA_NAMES = {
    "ml-dtypes": "ml_dtypes",
    "lmdb": "python-lmdb",
    "matplotlib": "matplotlib-base",
    "msgpack": "msgpack-python",
    "prometheus-client": "prometheus_client",
    "tensorboardX": "tensorboardx",
}
# The same library under two names, and with two ways to count versions.
PIP_ONEDNN, CONDA_ONEDNN = "onednn-cpu-gomp >=2023.2", "onednn-cpu-omp >=3.2"
# pip installs pygame by an extra of gymnasium; pip and Python are there before.
CONDA_ONLY = {"pygame", "pip", "python >=3.11"}


def test_conda_installs_what_pip_installs():
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = config["options.extras_require"]
    texts = [config["options"]["install_requires"], *(extras[name] for name in ("notebook", "test", "lint"))]
    lines = [line for text in texts for line in text.splitlines() if line]
    expected = {in_conda(line) for line in lines} - {PIP_ONEDNN} | {CONDA_ONEDNN} | CONDA_ONLY
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert set(environment["dependencies"]) == expected


def in_conda(requirement: str) -> str:
    """Return a requirement of pip in conda's words, without extras and without a condition on the platform."""
    match = re.match(r"([\w.-]+)(?:\[.*?\])?([^;\s]*)", requirement)
    assert match
    name, version = match.groups()
    return f"{CONDA_NAMES.get(name, name)} {version}".strip()
