"""Generates sentences with tagged names in the CoNLL columns of WNUT 2017."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

PATTERNS = (
    "{person} met {person} in {location}",
    "{person} moved to {location} last year",
    "it rained in {location}",
    "it rained",
)
FIRST, LAST = "Ann Bob Cy Di Eve Flo Gus Hal".split(), "Lee Ray Moss Fay Kent Dale Cole Ford".split()
TOWNS = ("New York", "Oslo", "San Juan", "Lima", "Cairo", "Abu Dhabi", "Delhi", "El Paso")
FILES = ("wnut17train.conll", "emerging.dev.conll")


def write_entities(folder: str | Path, counts: Sequence[int] = (320, 100), seed: int = 2) -> None:
    """Write wnut17train.conll and emerging.dev.conll, with ``counts`` made sentences, to ``folder``.

    Half of the names of the second file do not occur in the first: they must be recognised by their spelling and by the
    words around them.

    Args:
        folder: is created where it does not exist.
        counts: numbers of sentences.
        seed: of all random numbers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for file, count, names in zip(FILES, counts, (4, 8), strict=True):
        (folder / file).write_text("".join(_sentence(rng, names) for _ in range(count)))


def _sentence(rng: np.random.Generator, names: int) -> str:
    """Return the lines of a sentence, a word and its tag each, with names among the first ``names``."""
    lines = []
    for word in str(rng.choice(PATTERNS)).split():
        person = [str(rng.choice(FIRST[:names])), str(rng.choice(LAST[:names]))]
        name = {"{person}": person, "{location}": str(rng.choice(TOWNS[:names])).split()}.get(word)
        tags = [f"{'BI'[place > 0]}-{word[1:-1]}" for place in range(len(name))] if name else ["O"]
        lines += [f"{part}\t{tag}\n" for part, tag in zip(name or [word], tags, strict=True)]
    return "".join(lines) + "\n"
