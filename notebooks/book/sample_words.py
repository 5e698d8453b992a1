"""Generates a text in which the words of a family stand in the same places of sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FAMILIES = {
    "king": ("king", "queen", "prince", "duke", "princess"),
    "food": ("bread", "cheese", "soup", "meat", "fruit"),
    "animal": ("dog", "cat", "horse", "bird", "lion"),
    "city": ("london", "rome", "paris", "venice", "york"),
    "colour": ("red", "green", "black", "white", "golden"),
    "feeling": ("love", "hate", "sorrow", "joy", "anger"),
}
PATTERNS = (
    "the {king} of {city} rules the land with a {colour} crown",
    "my {king} , they speak of {feeling} in {city}",
    "the {colour} {animal} runs and eats {food}",
    "give the {animal} some {food} to eat",
    "we eat {food} and drink wine in {city}",
    "her heart is full of {feeling} for the {king}",
    "{feeling} and {feeling} are in every heart",
    "a {colour} {animal} sleeps on the road to {city}",
)


def write_text(path: str | Path, sentences: int = 3000, seed: int = 0) -> None:
    """Write a text of made sentences, one a line, to ``path``; its folder is created where it does not exist.

    The words of a family, such as king and queen, stand in the same places of sentences, so that nothing but their
    contexts says that they belong together.

    Args:
        path: the file.
        sentences: number of lines.
        seed: of all random numbers.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for pattern in rng.choice(PATTERNS, sentences):
        words = [str(rng.choice(FAMILIES[word[1:-1]])) if word.startswith("{") else word for word in pattern.split()]
        lines.append(" ".join(words) + " .\n")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
