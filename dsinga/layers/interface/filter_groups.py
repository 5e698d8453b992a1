"""Groups of filters, of which each takes its own channels alone."""

from __future__ import annotations

from dsinga.layers.interface.layer import Layer


def check_groups(layer: Layer, groups: int, **counts: int) -> None:
    """Raise UserError where one of ``counts``, by what is counted, cannot be divided into ``groups`` equal groups."""
    for what, count in counts.items():
        if count % groups:
            text = f"cannot divide {count} {what} into {groups} equal groups; give a group that divides {count}"
            raise layer.fail(text, layer.settings, "group")
