"""Generates reviews of films in the files of rt-polarity (movie-reviews)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

PRAISE = ("moving", "clever", "funny", "gripping", "tender", "fresh", "splendid", "wise")
BLAME = ("dull", "clumsy", "tired", "noisy", "silly", "pointless", "bland", "stale")
THINGS = ("plot", "cast", "script", "ending", "camera", "music", "story", "humour", "dialogue")
OPENINGS = (
    "the {thing} is",
    "a film whose {thing} is",
    "for all its length , the {thing} stays",
    "once more the {thing} is",
)
CLOSINGS = ("", "from start to end", "and that says it all", "whatever others say", "in every scene")


def write_reviews(folder: str | Path, each: int = 400, seed: int = 0) -> None:
    """Write rt-polarity.pos and rt-polarity.neg, with ``each`` made sentences, to ``folder``.

    A sentence praises or blames, and one in three says so with "not" and the opposite word, so that single words do not
    tell the class.

    Args:
        folder: is created where it does not exist.
        each: number of sentences of each class.
        seed: of all random numbers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for name, praises in (("neg", False), ("pos", True)):
        lines = [_sentence(praises, rng) for _ in range(each)]
        (folder / f"rt-polarity.{name}").write_text("".join(f"{line} . \n" for line in lines), encoding="latin-1")


def _sentence(praises: bool, rng: np.random.Generator) -> str:
    """Return a sentence that praises or blames."""
    words = [str(rng.choice(OPENINGS)).format(thing=rng.choice(THINGS))]
    for number in range(int(rng.integers(1, 3))):
        negated = rng.random() < 1 / 3
        word = rng.choice(PRAISE if praises != negated else BLAME)
        words += [*["and"] * (number > 0), *["not"] * bool(negated), str(word)]
    return " ".join(filter(None, [*words, str(rng.choice(CLOSINGS))]))
