"""Generates ratings of films in the files of MovieLens 100k."""

from __future__ import annotations

from pathlib import Path

import numpy as np

KINDS = {
    "comedy": ("Laugh", "Party", "Wedding"),
    "drama": ("River", "Letter", "Silence"),
    "sci-fi": ("Star", "Robot", "Orbit"),
    "horror": ("Night", "Scream", "Cellar"),
    "western": ("Canyon", "Saddle", "Dust"),
}
FIRST = ("Last", "Blue", "Second", "Long", "Lost", "Golden", "Secret", "Wild")
GENRE_COLUMNS = {"comedy": 5, "drama": 8, "sci-fi": 15, "horror": 11, "western": 18}


def write_ratings(folder: str | Path, users: int = 60, films: int = 80, ratings: int = 2400, seed: int = 0) -> None:
    """Write u.data, u.item and u.user, with made ratings from 1 to 5, to ``folder``.

    A user likes some genres; the title of a film tells its genre. A rating is the user's taste for the genre, how good
    the film is, and chance.

    Args:
        folder: is created where it does not exist.
        users: number of users.
        films: number of films.
        ratings: number of ratings, each of another pair of user and film.
        seed: of all random numbers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(KINDS), size=films)
    taste, quality = rng.normal(0, 1, (users, len(KINDS))), rng.normal(0, 0.5, films)
    pairs = rng.permutation(users * films)[:ratings]
    user, film = pairs // films, pairs % films
    stars = 3.4 + taste[user, kinds[film]] + quality[film] + rng.normal(0, 0.4, len(pairs))
    rounded = np.clip(np.rint(stars), 1, 5).astype(int)
    rows = zip(user + 1, film + 1, rounded, strict=True)
    (folder / "u.data").write_text("".join(f"{u}\t{f}\t{star}\t{880000000}\n" for u, f, star in rows))
    (folder / "u.item").write_text("".join(_film(number, kind, rng) for number, kind in enumerate(kinds, 1)))
    (folder / "u.user").write_text("".join(f"{number}|30|F|other|00000\n" for number in range(1, users + 1)))


def _film(number: int, kind: int, rng: np.random.Generator) -> str:
    """Return the line of a film of the genre ``kind``."""
    genre = [*KINDS][kind]
    year = int(rng.integers(1970, 1999))
    title = f"The {rng.choice(FIRST)} {rng.choice(KINDS[genre])} ({year})"
    flags = "|".join(str(int(column == GENRE_COLUMNS[genre])) for column in range(19))
    return f"{number}|{title}|01-Jan-{year}||http://example.org/{number}|{flags}\n"
