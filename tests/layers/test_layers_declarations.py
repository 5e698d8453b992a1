"""Declarations of a layer: earlier names and values of other types are refused, with what is written instead."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers import Connection, Cut, LabelFormat, Labels, Layer, Output, SourceKind
from dsinga.layers.interface.contract import make_layer
from dsinga.layers.interface.declarations import EARLIER_NAMES

WORDS = {"Connection": Connection, "Cut": Cut, "LabelFormat": LabelFormat, "Labels": Labels, "SourceKind": SourceKind}


class Same(Layer):
    """Passes on its source; its constructor sets the attributes ``late``."""

    late: dict[str, object] = {}

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        vars(self).update(self.late)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0])


@pytest.mark.parametrize("name", EARLIER_NAMES)
def test_an_attribute_by_its_earlier_name_is_refused_where_the_class_is_defined(name: str):
    with pytest.raises(UserError, match=rf"^the layer class Old sets {name}; write \S+ = \S+"):
        type("Old", (Same,), {name: 1})
    with pytest.raises(UserError, match=rf"^the layer class Old sets {name}; write"):
        type("Old", (type("Mixin", (), {name: 1}), Same), {})


def test_an_attribute_by_its_earlier_name_is_refused_where_the_constructor_sets_it():
    late = type("Late", (Same,), {"late": {"label_source": 1}})
    with pytest.raises(UserError, match=r"layer 'a': Late sets label_source; write labels = Labels\(source=1\)"):
        make_layer(late, LayerConf(name="a", srclayers=["data"]), [(4, 2)], None)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("labels", 1, r"labels = Labels\(source=1\)"),
        ("cut", Connection.kOneToOne, r"cut = Cut\(Connection.kOneToOne\)"),
        ("new_labels", True, r"new_labels = LabelFormat\(\)"),
        ("source_kind", "vectors", r"source_kind = SourceKind.kVectors"),
    ],
)
def test_a_declaration_of_another_type_is_refused(name: str, value: object, instead: str):
    with pytest.raises(UserError, match=rf"^the layer class Wrong sets {name} to .*{value}.*; write {instead}$"):
        type("Wrong", (Same,), {name: value})
    late = type("Late", (Same,), {"late": {name: value}})
    with pytest.raises(UserError, match=rf"layer 'a': Late sets {name} to .*; write {instead}$"):
        make_layer(late, LayerConf(name="a", srclayers=["data"]), [(4, 2)], None)


@pytest.mark.parametrize("written", EARLIER_NAMES.values())
def test_what_is_written_instead_is_declared_by_a_layer(written: str):
    name, value = written.split(" = ")
    if name.startswith("self."):
        assert hasattr(Layer, name.removeprefix("self."))
    else:
        New = type("New", (Same,), {name: eval(value, WORDS | {"numpy": np})})
        assert type(getattr(New, name)) is type(getattr(Layer, name) or LabelFormat())
