"""Measures rates of layers quickly, as if on an idle machine: what they are matters in no test, that they are does."""

import importlib.util
from collections.abc import Callable

QUICK = {
    "rate_store.start_watching": lambda: lambda: False,  # nothing is measured again, whatever else runs
    "layer_timing.RUNS": 2,
    "net_timing.WARM_UP": 1,
    "net_timing.MIN_ITERATIONS": 1,
    "net_timing.MIN_SECONDS": 0.0,
}


def measure_quickly(replace: Callable[[str, object], object]) -> None:
    """Call ``replace`` with the path of each attribute of the planner, if that add-on is there, and its value."""
    if importlib.util.find_spec("dsinga.addons.planner") is None:
        return
    for name, value in QUICK.items():
        replace(f"dsinga.addons.planner.{name}", value)
