"""docs/partitioning.md has every layer type with its class's cut on dimension 1, or the reason against one."""

import re
from pathlib import Path

import dsinga.net  # noqa: F401  registers the layers
from dsinga.job import LayerConf
from dsinga.layers import Connection, Layer
from tests.support.registries import entries

PAGE = (Path(__file__).parents[2] / "docs" / "partitioning.md").read_text(encoding="utf-8")
CUT = {
    Connection.kOneToAll: "cut; each part takes all features of the source",
    Connection.kOneToOne: "cut; each part takes the same features of the source",
}
ALONG_FEATURES = {"kSlice": "slice", "kConcate": "concate"}  # the axis of the layer decides


def description(kind: str, layer: type[Layer]) -> str:
    """Return the text that the table must have for a type."""
    if kind in ALONG_FEATURES:
        name = ALONG_FEATURES[kind]
        slicer = layer(LayerConf(name="layer", type=kind, **{f"{name}_conf": {f"{name}_dim": 1}}), [(4, 3)])
        assert slicer.cut.connection is None
        return f"along features gathered: {slicer.cut.gathered_because}"
    return f"gathered: {layer.cut.gathered_because}" if layer.cut.connection is None else CUT[layer.cut.connection]


def test_the_table_agrees_with_the_classes():
    section = PAGE.split("## Which layers are cut by features")[1].split("## ")[0]
    rows = re.findall(r"^\| (`k.*) \| (.*) \|$", section, re.MULTILINE)
    table = {kind: text for kinds, text in rows for kind in re.findall(r"`(\w+)`", kinds)}
    layers = entries("layer").items()
    builtin = {kind: layer for kind, layer in layers if getattr(layer, "__module__", "").startswith("dsinga.")}
    assert table == {kind: description(kind, layer) for kind, layer in builtin.items()}
