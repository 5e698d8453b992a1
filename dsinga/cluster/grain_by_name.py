"""The grains of a run by name."""

from __future__ import annotations

from dsinga.cluster.grain import ROUNDS, Grain
from dsinga.errors import UserError

NAMES = ("round", "graph")


def find_grain(name: str) -> Grain:
    """Return the grain of that name: "round" or "graph". Raises UserError for any other name."""
    if name == "round":
        return ROUNDS
    if name == "graph":
        from dsinga.cluster.graph_grain import GRAPHS  # nothing else of the package needs graph grain

        return GRAPHS
    raise UserError(f"grain must be one of {', '.join(NAMES)}, not {name!r}")
