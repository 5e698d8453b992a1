"""The importer of MovieLens 100k: ratings of films by users, with the films' titles and genres."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dsinga.addons.importers.batches import StoreContents, find, in_batches, text_lines
from dsinga.addons.text.vocabulary import (
    RECORDS_PER_BATCH,
    check_held_out,
    check_min_count,
    common_words,
    encode_sentences,
    is_held_out,
)
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.locations import join

GENRES = (
    "unknown", "action", "adventure", "animation", "children", "comedy", "crime", "documentary", "drama", "fantasy",
    "film-noir", "horror", "musical", "mystery", "romance", "sci-fi", "thriller", "war", "western",
)  # fmt: skip
WORD = re.compile(r"[\w']+")


class Film(NamedTuple):
    """A film's title with the year, and a flag for each genre."""

    title: str
    genres: tuple[int, ...]


class Ratings(NamedTuple):
    """Ratings from 1 to 5, with the codes of their users and films."""

    users: np.ndarray
    films: np.ndarray
    stars: np.ndarray


@register("importer", "movielens")
def movielens(source: str, min_count: int = 2, held_out: float = 0.2) -> dict[str, StoreContents]:
    """Read u.data, u.item and u.user of MovieLens 100k from a folder, plain, .gz or .xz.

    The destination is a folder. In its folders ``train`` and ``test`` a record is a rating. ``users.zarr`` has the
    user's code, with the rating from 1 to 5 as a float label, ``films.zarr`` the film's code. ``titles.zarr`` has the
    words of its title in lower case, including the year, -1 after the end, and ``genres.zarr`` a 1 for each genre. The
    folder ``films`` has the stores films, titles and genres with a record a film, in code order. The vocabularies are
    users' numbers and films' titles.

    Args:
        source: the folder.
        min_count: words in fewer titles become <unk>.
        held_out: the share of the ratings, evenly spaced in u.data, that is kept for tests.
    """
    check_min_count(min_count)
    check_held_out(held_out)
    users = _users(find(source, "u.user"))
    films = _films(find(source, "u.item"))
    ratings = _ratings(find(source, "u.data"), users, films)
    titles = [WORD.findall(film.title.lower()) for film in films.values()]
    words = common_words(Counter(word for title in titles for word in dict.fromkeys(title)), min_count)
    data = {
        "titles": (encode_sentences(titles, words, max(map(len, titles))), words),
        "genres": (np.array([film.genres for film in films.values()], np.float32), GENRES),
    }
    names = {"users": tuple(users), "films": tuple(film.title for film in films.values())}
    chosen = np.array([is_held_out(number, held_out) for number in range(len(ratings.stars))])
    parts = {"train": ~chosen, "test": chosen}
    stores = {}
    for part, rows in parts.items():
        if not rows.any():
            raise UserError(f"{source}: with held_out {held_out} there would be no rating to {part} with")
        some = Ratings(*(column[rows] for column in ratings))
        stores[join(part, "users.zarr")] = _contents(some.users, some.stars, names["users"])
        stores |= _of_films(part, some.films, data, names["films"])
    return stores | _of_films("films", np.arange(len(films)), data, names["films"])


def _of_films(
    part: str, films: np.ndarray, data: dict[str, tuple[np.ndarray, tuple[str, ...]]], titles: tuple[str, ...]
) -> dict[str, StoreContents]:
    described = {
        join(part, f"{name}.zarr"): _contents(features[films], None, words) for name, (features, words) in data.items()
    }
    return {join(part, "films.zarr"): _contents(films, None, titles), **described}


def _contents(data: np.ndarray, labels: np.ndarray | None, vocabulary: tuple[str, ...]) -> StoreContents:
    data = data.astype(np.int32) if data.dtype.kind == "i" else data
    names = vocabulary if data.dtype == np.int32 else ()
    return StoreContents(in_batches(data, labels, RECORDS_PER_BATCH), len(data), (), names)


def _rows(path: str, separator: str, columns: int) -> Iterator[tuple[str, list[str]]]:
    number = 0
    for number, line in text_lines(path, "latin-1"):
        cells = line.strip("\r\n").split(separator)
        if len(cells) != columns:
            name = {"\t": "tabs", "|": "|"}[separator]
            raise UserError(f"{path}:{number}: {len(cells)} columns separated by {name}, not {columns}")
        yield f"{path}:{number}", cells
    if not number:
        raise UserError(f"{path} is empty")


def _users(path: str) -> dict[str, int]:
    users: dict[str, int] = {}
    for where, (number, *_) in _rows(path, "|", 5):
        if number in users:
            raise UserError(f"{where}: the user {number} has a line already")
        users[number] = len(users)
    return users


def _films(path: str) -> dict[str, Film]:
    films: dict[str, Film] = {}
    for where, (number, title, _, _, _, *flags) in _rows(path, "|", 5 + len(GENRES)):
        if number in films:
            raise UserError(f"{where}: the film {number} has a line already")
        if not WORD.search(title):
            raise UserError(f"{where}: the film {number} has no title")
        if not set(flags) <= {"0", "1"}:
            raise UserError(f"{where}: genres are 0 or 1 each, not {'|'.join(flags)}")
        films[number] = Film(title, tuple(map(int, flags)))
    return films


def _ratings(path: str, users: dict[str, int], films: dict[str, Film]) -> Ratings:
    codes = {number: code for code, number in enumerate(films)}
    rows: list[tuple[int, int, int]] = []
    for where, (user, film, stars, _) in _rows(path, "\t", 4):
        if user not in users:
            raise UserError(f"{where}: the user {user} is not in u.user")
        if film not in codes:
            raise UserError(f"{where}: the film {film} is not in u.item")
        if stars not in ("1", "2", "3", "4", "5"):
            raise UserError(f"{where}: a rating is 1, 2, 3, 4 or 5, not {stars!r}")
        rows.append((users[user], codes[film], int(stars)))
    user_codes, film_codes, ratings = (np.array(column) for column in zip(*rows, strict=True))
    return Ratings(user_codes, film_codes, ratings.astype(np.float32))
