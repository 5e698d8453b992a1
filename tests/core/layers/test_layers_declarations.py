"""Declarations of a layer: values of other types are refused, with what is written instead."""

import pytest

from dsinga.base.errors import UserError
from dsinga.job import LayerConf
from dsinga.layers import Connection, Cut, LabelFormat, Labels, Layer, Output, SourceKind
from dsinga.layers.interface.contract import make_layer
from dsinga.layers.interface.declarations import DECLARED

WORDS = {"Connection": Connection, "Cut": Cut, "LabelFormat": LabelFormat, "Labels": Labels, "SourceKind": SourceKind}


class Same(Layer):
    """Passes on its source; its constructor sets the attributes ``late``."""

    late: dict[str, object] = {}

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        vars(self).update(self.late)

    def compute_feature(self, params, sources, ctx):
        return Output(sources[0])


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


@pytest.mark.parametrize(("name", "declared"), DECLARED.items())
def test_the_example_in_the_message_is_a_declaration(name: str, declared: tuple[object, str]):
    value = eval(declared[1].removeprefix(f"{name} = "), WORDS)
    assert getattr(type("New", (Same,), {name: value}), name) is value
