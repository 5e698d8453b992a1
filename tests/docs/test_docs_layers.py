"""The pages of formulas and of settings name everything built in, and nothing that is not there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsinga.data
import dsinga.net
import dsinga.training  # noqa: F401  registers the rest
from dsinga.job import LayerConf, Message, ParamConf
from dsinga.job.component import component_settings, docs
from dsinga.job.message import field_types
from dsinga.layers.interface.declarations import Bfloat16
from tests.support.registries import entries
from tests.support.settings_pages import pages

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join(
    (DOCS / name).read_text(encoding="utf-8") for name in ("layers.md", "losses.md", "updaters.md", "reinforcement.md")
)
SECTIONS = {
    "updater": ("Updaters",),
    "schedule": ("Learning rates",),
    "initialiser": ("Initialisers",),
    "algorithm": ("Algorithm",),
    "learning_algorithm": ("Algorithms",),
}
DESCRIBED = ("layer", "updater", "schedule", "initialiser", "algorithm", "learning_algorithm")  # of this page


def builtin(kind: str) -> set[str]:
    """Return the registered names of a kind whose code is of this package (other tests register their own)."""
    return {name for name, entry in entries(kind).items() if getattr(entry, "__module__", "").startswith("dsinga.")}


def documented(kind: str) -> set[str]:
    """Return the names in the first cells of the tables of a kind's sections, or in its text where it has none."""
    found = set()
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.split("\n", 1)[0]
        wanted = title in SECTIONS[kind] if kind in SECTIONS else title not in sum(SECTIONS.values(), ())
        if wanted:
            cells = re.findall(r"^\| (`k[^|]*) \|", section, flags=re.MULTILINE) or [prose(section)]
            found.update(name for cell in cells for name in re.findall(r"\bk[A-Z]\w+", cell))
    return found


def prose(section: str) -> str:
    """Return a section without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_the_page_names_what_is_built_in(kind):
    names = builtin(kind)
    assert names, "nothing is registered"
    assert documented(kind) - {"kConst"} == names - {"kConst"}


def test_the_page_on_augmentation_names_every_augmentation():
    page = (DOCS / "augmentation.md").read_text(encoding="utf-8")
    cells = "".join(re.findall(r"^\| (`[A-Z].*?) \|", page, flags=re.MULTILINE))
    assert {f"k{name}" for name in re.findall(r"`(\w+)`", cells)} == builtin("augmentation")


def test_the_page_on_data_names_every_importer():
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[a-z0-9]+`(?:, (?:or )?`[a-z0-9]+`)*) \|", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", "".join(cells))) == builtin("importer")


def settings() -> Iterator[tuple[type[Message], str]]:
    """Yield (message, field) for each setting that a formula in a row of a table names."""
    confs = {
        name: getattr(entry, "Conf", None)
        for kind in ("layer", "updater", "schedule")
        for name, entry in entries(kind).items()
    }
    for names, row in re.findall(r"^\| (`k[^|]*) \|(.*)$", PAGE, flags=re.MULTILINE):
        conf = confs.get(re.findall(r"\bk\w+", names)[0])
        for name in re.findall(r"`([a-z]\w*)[:`]", row) if conf else ():
            if not re.match("k[A-Z]", name) and not name.endswith("_conf"):
                yield conf, name


def test_formulas_name_settings_that_there_are():
    rows = list(settings())
    assert len(rows) > 30
    of_all = {*field_types(LayerConf), *field_types(ParamConf)}
    for message, name in rows:
        assert name in {*field_types(message), *of_all}, f"{message.__name__} has no {name}"


@pytest.mark.parametrize("kind", [*DESCRIBED, "extension", "augmentation"])
def test_the_pages_of_settings_name_what_is_built_in_and_what_each_setting_means(kind):
    text = "".join(pages().values())
    for name in builtin(kind):
        assert f"`{name}`" in text or f"# {name}\n" in text
    for name, conf in component_settings(kind):
        empty = [setting for setting, meaning in docs(conf).items() if name in builtin(kind) and not meaning.strip()]
        assert not empty, f"{name} does not say what {empty} mean"


def test_the_page_on_gpus_names_the_layers_that_take_bfloat16():
    page = (DOCS / "howto" / "gpus.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"Images stay bfloat16.*?pass them on", page, flags=re.DOTALL)
    layers = entries("layer")
    takers = {layers[name] for name in builtin("layer") if layers[name].bf16 is Bfloat16.kFeatures}
    named = {layers[name] for name in re.findall(r"\bk[A-Z]\w+", text)}
    assert named == takers - {layers["kInnerProduct"]}  # its feature is float32
    assert "kInnerProduct accepts bfloat16" in page


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\S+?\.md)\)", index)) >= {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def test_the_page_on_metrics_names_every_metric():
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    for name in builtin("metric"):
        assert f"`{name}`" in text
