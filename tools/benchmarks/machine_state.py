"""The state of the machine while a benchmark runs: load, frequency of the cores, and time that the host has taken."""

from __future__ import annotations

import os
import re
from pathlib import Path


class MachineState:
    """What other work does on the machine from the construction on."""

    def __init__(self) -> None:
        self._before = _ticks()

    def figures(self) -> dict[str, float]:
        """Return the load of the last minute, the megahertz of the slowest core, and the share of stolen time."""
        total, stolen = (after - before for before, after in zip(self._before, _ticks(), strict=True))
        path = Path("/proc/cpuinfo")
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        megahertz = [float(number) for number in re.findall(r"^cpu MHz\s*: ([\d.]+)", text, re.MULTILINE)]
        return {"load": os.getloadavg()[0], "mhz": min(megahertz, default=0.0), "steal": stolen / max(total, 1)}


def _ticks() -> tuple[int, int]:
    """Return the ticks of all cores since the machine has started, and those that its host took for other machines."""
    path = Path("/proc/stat")
    numbers = list(map(int, path.read_text(encoding="utf-8").split("\n")[0].split()[1:9])) if path.exists() else [0] * 8
    return sum(numbers), numbers[7]
