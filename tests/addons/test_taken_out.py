"""Each add-on can be taken out: the rest works, and whoever asks for something of it gets a sentence that names it."""

import ast
import csv

import pytest

from tests.support.programs import python
from tools.without_addons import ROOT, addons, copy_checkout, path_of

pytestmark = pytest.mark.ci
FACES = {"dsinga": "__init__.py", "dsinga.data": "data/__init__.pyi", "dsinga.training": "training/__init__.pyi"}
PROGRAM = r"""
import contextlib, importlib, io, re, runpy, sys
import dsinga
from dsinga.base.registry import UserError, entries, find

def command(*arguments):
    sys.argv[1:] = arguments
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        runpy.run_module("dsinga", run_name="__main__")
    return printed.getvalue()

assert "dsinga, version" in command("--version")
assert "kInnerProduct" in command("show", "job.conf")
assert "after 1 steps" in command("train", "job.conf", "--set", "train_steps=1", "--workspace", WORKSPACE)
for kind in {kind for kind, _ in COMPONENTS}:
    entries(kind)

def sentence(what, ask):
    try:
        ask()
    except UserError as error:
        assert f"belongs to the add-on {ADDON}, which is not installed" in str(error), (what, error)
    else:
        raise AssertionError(f"{what} is there")

if ADDON != "dsinga.estimators":
    import numpy as np
    from dsinga.estimators import Classifier

    Classifier(epochs=1).fit(np.eye(8), np.arange(8) % 2)
text = open("job.conf").read()
for name in (name for kind, name in COMPONENTS if kind == "layer" and name.startswith("k")):
    open(f"{WORKSPACE}/other.conf", "w").write(text.replace("type: kSoftmaxLoss", f"type: {name}"))
    try:
        dsinga.train(f"{WORKSPACE}/other.conf", progress=False)
    except UserError as error:
        assert re.match(r".*other.conf:\d+: layer 'loss': .*belongs to the add-on " + ADDON, str(error)), (name, error)
for kind, name in COMPONENTS:
    sentence((kind, name), lambda: find(kind, name))
for face, name in NAMES:
    sentence((face, name), lambda: getattr(importlib.import_module(face), name))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


def components(addon: str) -> list[tuple[str, str]]:
    """Return the kind and name of each component of an add-on."""
    with open(ROOT / "dsinga" / "base" / "components.csv", encoding="utf-8") as file:
        return [
            (row["kind"], row["name"]) for row in csv.DictReader(file) if f"{row['module']}.".startswith(f"{addon}.")
        ]


def names(addon: str) -> list[tuple[str, str]]:
    """Return the names of an add-on that users find in a face of the core, with the module where they do."""
    found = []
    for face, file in FACES.items():
        for line in ast.walk(ast.parse((ROOT / "dsinga" / file).read_text("utf-8"))):
            if isinstance(line, ast.ImportFrom):
                found += [
                    (face, alias.asname or alias.name)
                    for alias in line.names
                    if f"{line.module}.{alias.name}.".startswith(f"{addon}.")
                ]
    return found


@pytest.mark.parametrize("addon", addons())
def test_an_addon_can_be_taken_out(addon, checkout, tmp_path):
    asked = components(addon), names(addon)
    assert any(asked), "no name leads to it"
    head = f"ADDON, WORKSPACE = {addon!r}, {str(tmp_path)!r}\nCOMPONENTS, NAMES = {asked!r}\n"
    path = path_of(checkout, addon)
    path.rename(tmp_path / "hidden")
    try:
        environment = {"PYTHONPATH": str(checkout)}
        python("-c", head + PROGRAM, environment=environment, cwd=checkout / "datasets" / "digits")
    finally:
        (tmp_path / "hidden").rename(path)
