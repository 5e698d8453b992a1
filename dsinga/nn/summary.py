"""A model as a table: a line for each layer, with the shape of its feature and the number of its params."""

from __future__ import annotations

from dsinga.layers.base import as_text
from dsinga.net import NeuralNet
from dsinga.net.describe import describe


def summary_text(net: NeuralNet, name: str) -> str:
    """Return the table of a net: layer, type, shape of a row of the feature, number of params; then their sum."""
    rows = describe(net)
    cells = [("layer", "type", "feature", "params")]
    cells += [(row.layer, row.typed, as_text(row.shape[1:] or (1,)), f"{row.count:,}") for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    pattern = "{{:<{}}}  {{:<{}}}  {{:<{}}}  {{:>{}}}".format(*widths)
    lines = [pattern.format(*line) for line in cells]
    total = sum(row.count for row in rows)
    return "\n".join([*lines, f"{name}: {total:,} numbers in params, {sum(row.bytes for row in rows):,} bytes"])
