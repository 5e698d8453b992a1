"""docs/reference/ is what its generator writes, names everything that is built in, and explains every setting."""

import inspect
import re
import subprocess
import sys

import click
import pytest

from dsinga import nn
from dsinga.base.settings import schema
from dsinga.commands.cli import main_group
from dsinga.job.component import component_settings
from dsinga.job.message import is_message
from tests.support.registries import entries
from tools.reference.components import built_in
from tools.reference.names import OTHERS
from tools.reference.pages import FOLDER, MESSAGES
from tools.reference.texts import meanings

MADE = ("LayerBuilder", "UpdaterConf", "LRGenConf")  # what the functions of layers, optimizers and schedules return
OTHER = {"glossary.md", "rooms.md", "cuts.md", "onnx-operators.md"}  # by hand, or by tests.support
KINDS = ("layer", "updater", "schedule", "initialiser", "algorithm", "learning_algorithm", "extension", "augmentation")


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The generated pages, which the first test holds up to date."""
    return {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.name not in OTHER}


def test_the_pages_are_up_to_date(written):
    """In a process of its own: what other tests register and patch is on no page."""
    command = [sys.executable, "-m", "tools.reference", "--check"]
    ended = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=100, check=False)
    assert ended.stdout == "out of date: none\n", "run python -m tools.reference"
    assert "layers.md" in written


def builtin(kind: str) -> set[str]:
    """Return the registered names of a kind whose code is of this package (other tests register their own)."""
    return {name for name, entry in entries(kind).items() if getattr(entry, "__module__", "").startswith("dsinga.")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_pages_name_what_is_built_in_and_what_each_setting_means(kind, written):
    text = "".join(written.values())
    assert builtin(kind)
    assert not [name for name in builtin(kind) if f"`{name}`" not in text]
    for name, conf in component_settings(kind):
        empty = [field for field, meaning in meanings(conf).items() if name in builtin(kind) and not meaning.strip()]
        assert not empty, f"{name} does not say what {empty} mean"


def test_each_component_is_on_one_page(written):
    titles = [title for text in written.values() for title in re.findall(r"^###? (.+)$", text, re.MULTILINE)]
    for entry in (entry for kind in KINDS for entry in built_in(kind) if kind != "augmentation"):
        assert titles.count(entry.title) == 1 + (entry.title in ("RandomCrop", "Dropout")), entry.title


def test_every_layer_and_optimizer_of_nn_is_on_a_page(written):
    text = "".join(written.values())
    names = {name for name in nn.__all__ if name[0].isupper() and returned_type(getattr(nn, name)) in MADE}
    assert {"Dense", "Adam", "CosineDecay", "HuberLoss"} <= names
    assert not [name for name in names - set(OTHERS) if f"nn.{name}(" not in text]


def returned_type(function) -> str:
    """Return the name of what a function returns, "" for what is no function."""
    if not inspect.isfunction(function):
        return ""
    returned = inspect.signature(function).return_annotation
    return str(getattr(returned, "__name__", returned))


@pytest.mark.parametrize("title", MESSAGES)
def test_every_field_of_a_job_is_explained(title):
    message = MESSAGES[title]
    said = meanings(message)
    messages = {name for name, hint in message._types.items() if is_message(hint)}
    assert not [name for name in message._types if not said.get(name, "").strip() and name not in messages]
    assert set(said) <= {*message._types, *said}


def test_the_settings_and_commands_are_there(written):
    assert all(f"## {name}\n" in written["settings.md"] for name in schema())
    for name in main_group.list_commands(click.Context(main_group)):
        assert f"## dsinga {name}\n" in written["commands.md"]


def test_metrics_have_all_registered_functions(written):
    assert all(f"| `{name}` |" in written["metrics.md"] for name in builtin("metric"))
