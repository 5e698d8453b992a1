"""Writes docs/reference/cuts.md: how each type of layer is cut over workers, from the declarations of its class.

``python -m tests.support.cut_table`` writes the page; a test compares it with the classes.
"""

from pathlib import Path

import dsinga.net  # noqa: F401  registers the layers
from dsinga.job import LayerConf
from dsinga.layers import Connection, Cut, Layer
from tests.support.registries import entries

PATH = Path(__file__).parents[2] / "docs" / "reference" / "cuts.md"
HEAD = """# How each layer is cut

What `partition_dim: 1` (by features) and `partition_dim: 2` (by space) do with each type of layer.
[Partitioning](../design/partitioning.md) explains the ways to cut.

- *Cut, all features*: each worker computes some features, and needs all features of the source.
- *Cut, same features*: each worker computes some features, and needs the same features of the source.
- *Gathered*: the layer needs whole rows. Workers collect them and compute the layer by rows.
- *Points*: each worker computes its points, and gets the points around them that the layer needs.

The shapes of a layer may allow less: `dsinga show --partitions N` prints the reason for each layer.

<!-- written by python -m tests.support.cut_table -->

| type | by features | by space |
| --- | --- | --- |
"""
CUT = {Connection.kOneToAll: "cut, all features", Connection.kOneToOne: "cut, same features"}
ALONG_FEATURES = {"kSlice": "slice", "kConcate": "concate"}  # the axis of the layer decides


def cut_of(kind: str, layer: type[Layer]) -> Cut:
    """Return how a type of layer is cut: what its class declares, or what a layer along features does."""
    if kind not in ALONG_FEATURES:
        return layer.cut
    name = ALONG_FEATURES[kind]
    return layer(LayerConf(name="layer", type=kind, **{f"{name}_conf": {f"{name}_dim": 1}}), [(4, 3)]).cut


def row(kind: str, cut: Cut) -> str:
    """Return the row of a type of layer."""
    along = "along features " if kind in ALONG_FEATURES else ""
    by_features = CUT[cut.connection] if cut.connection is not None else f"{along}gathered: {cut.gathered_because}"
    return f"| `{kind}` | {by_features} | {'points' if cut.by_space else 'gathered'} |"


def page() -> str:
    """Return the text of docs/reference/cuts.md."""
    layers = {
        kind: layer
        for kind, layer in entries("layer").items()
        if getattr(layer, "__module__", "").startswith("dsinga.")
    }
    rows = [row(kind, cut_of(kind, layer)) for kind, layer in sorted(layers.items())]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
