"""Names and components of add-ons: the table of components, faces, and what is said where an add-on is missing."""

import importlib
import re
from collections import Counter

import pytest

from dsinga.base.components import TABLE
from tests.core.base.test_registry import python
from tests.support import component_table

FACES = (
    "dsinga",
    *(f"dsinga.{name}" for name in ("api", "checkpoint", "data", "extensions", "monitor", "net", "training")),
)


@pytest.mark.parametrize("package", FACES)
def test_each_name_of_a_face_is_there(package):
    face = importlib.import_module(package)
    assert all(getattr(face, name) is not None for name in getattr(face, "__all__", dir(face)) if name[0] != "_")


def test_the_table_has_what_the_sources_register():
    rows = component_table.registered()
    assert TABLE.read_text("utf-8") == component_table.table(component_table.with_fields(rows)), (
        "run python -m tests.support.component_table"
    )
    numbers = Counter((row.kind, row.number, row.attribute) for row in rows if row.number is not None)
    assert len({key[:2] for key in numbers}) == len(numbers)


def test_a_component_of_an_addon_that_is_not_installed_is_named():
    lines = python('''
        import sys
        sys.modules["dsinga.addons.functions"] = None
        from dsinga.base.registry import entries, UserError
        from dsinga.job import loads
        print(len(entries("layer")) > 100)
        text = """name: "x"
        neuralnet { layer { name: "f"
          type: kFunction
          function_conf { function: "a:b" } } }"""
        try:
            loads(text)
        except UserError as error:
            print(error)
    ''')
    sentence = "belongs to the add-on dsinga.addons.functions, which is not installed; install all of dsinga by"
    assert lines[0] == "True"
    assert re.search(rf":4: layer 'f': layer 'kFunction' {sentence} 'pip install --force-reinstall dsinga'$", lines[1])
