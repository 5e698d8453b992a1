"""Pages that list what is built in name all of it, and nothing that is not there."""

import re
from pathlib import Path

import dsinga.data
import dsinga.net
import dsinga.training  # noqa: F401  registers the rest
from dsinga.layers.interface.declarations import Bfloat16
from tests.support.registries import entries

DOCS = Path(__file__).parents[2] / "docs"


def builtin(kind: str) -> set[str]:
    """Return the registered names of a kind whose code is of this package (other tests register their own)."""
    return {name for name, entry in entries(kind).items() if getattr(entry, "__module__", "").startswith("dsinga.")}


def test_the_page_on_augmentation_names_every_augmentation():
    page = (DOCS / "howto" / "augmentation.md").read_text(encoding="utf-8")
    cells = "".join(re.findall(r"^\| (`[A-Z].*?) \|", page, flags=re.MULTILINE))
    assert {f"k{name}" for name in re.findall(r"`(\w+)`", cells)} == builtin("augmentation")


def test_the_page_on_data_names_every_importer():
    page = (DOCS / "howto" / "read-stored-data.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[a-z0-9]+`(?:, (?:or )?`[a-z0-9]+`)*) \|", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", "".join(cells))) == builtin("importer")


def test_the_page_on_gpus_names_the_layers_that_take_bfloat16():
    page = (DOCS / "howto" / "gpus.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"Images stay bfloat16.*?pass them on", page, flags=re.DOTALL)
    layers = entries("layer")
    takers = {layers[name] for name in builtin("layer") if layers[name].bf16 is Bfloat16.kFeatures}
    named = {layers[name] for name in re.findall(r"\bk[A-Z]\w+", text)}
    assert named == takers - {layers["kInnerProduct"]}  # its feature is float32
    assert "kInnerProduct accepts bfloat16" in page
