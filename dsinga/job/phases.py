"""The phases of a run by the names that people, metrics and the Python API call them."""

from __future__ import annotations

from dsinga.errors import UserError
from dsinga.job.enums import Phase

PHASES = {"train": Phase.kTrain, "val": Phase.kVal, "test": Phase.kTest, "deploy": Phase.kDeploy}


def find_phase(name: str) -> Phase:
    """Return the phase "train", "val", "test" or "deploy". Raises UserError for any other name."""
    try:
        return PHASES[name]
    except KeyError:
        raise UserError(f"there is no phase {name!r}; the phases are {', '.join(PHASES)}") from None
