"""docs/layers.md and docs/updaters.md name everything built in, and nothing that is not there."""

import enum
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsinga.data
import dsinga.net
import dsinga.training  # noqa: F401  registers the rest
from dsinga import registry
from dsinga.data import KINDS
from dsinga.job import LayerConf, LRGenConf, Message, UpdaterConf
from dsinga.job.message import defaults, field_types, item_type
from tests.support.registries import entries

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join(
    (DOCS / name).read_text(encoding="utf-8")
    for name in ("layers.md", "policy-losses.md", "updaters.md", "reinforcement.md")
)
SECTIONS = {
    "updater": ("Updaters",),
    "schedule": ("Learning rates",),
    "initialiser": ("Initialisers",),
    "algorithm": ("Algorithm",),
    "learning_algorithm": ("Algorithms",),
}


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
            cells = re.findall(r"^\| (`k[^|]*) \|", section, flags=re.MULTILINE) or [section]
            found.update(name for cell in cells for name in re.findall(r"\bk[A-Z]\w+", cell))
    return found


@pytest.mark.parametrize(
    "kind", [kind for kind in registry.ROOMS if kind not in ("importer", "extension", "environment")]
)
def test_the_page_names_what_is_built_in(kind):
    names = builtin(kind)
    assert names, "nothing is registered"
    assert documented(kind) - {"kConst"} == names - {"kConst"}


def test_the_page_on_data_names_every_importer():
    assert KINDS.keys() <= builtin("importer")
    page = (DOCS / "data.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[a-z0-9]+`(?:, (?:or )?`[a-z0-9]+`)*) \|", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", "".join(cells))) == builtin("importer")


def settings() -> Iterator[tuple[type[Message], str, str | None]]:
    """Yield (message, field, default or None) for each setting that a row of a table gives."""
    owners = {**field_types(LayerConf), **field_types(UpdaterConf), **field_types(LRGenConf)}
    for row in re.findall(r"^\| `k.*$", PAGE, flags=re.MULTILINE):
        conf = re.search(r"`(\w+_conf)`", row)
        if conf and conf[1] != "store_conf":
            message = item_type(owners[conf[1]])[0]
            for name, default in re.findall(r"`([a-z]\w*)`(?: \[([^\]:]+)[^\]]*\])?", row):
                if not re.match("k[A-Z]", name) and not name.endswith("_conf"):
                    yield message, name, default or None


def test_settings_and_their_defaults_are_those_of_the_schema():
    rows = list(settings())
    assert len(rows) > 30
    for message, name, default in rows:
        assert name in field_types(message), f"{message.__name__} has no {name}"
        own = defaults(message).get(name)
        if default and own is not None:  # windows have defaults that depend on the layer
            shown = own.name if isinstance(own, enum.Enum) else str(own).lower()
            assert default == shown or float(default) == own, f"{message.__name__}.{name} is {shown}, not {default}"


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\S+?\.md)\)", index)) >= {page.name for page in DOCS.glob("*.md")} - {"README.md"}
