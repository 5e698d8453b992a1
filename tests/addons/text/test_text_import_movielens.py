"""The importer of MovieLens: codes of users and films, titles, genres, held-out ratings, errors with file and line."""

from pathlib import Path

import pytest

from dsinga.addons.text.importers.movielens import GENRES
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, import_records


def film(number: int, title: str, *genres: str) -> str:
    return f"{number}|{title}|01-Jan-1995||http://x|{'|'.join(str(int(genre in genres)) for genre in GENRES)}\n"


FILES = {
    "u.user": "1|24|M|technician|85711\n2|53|F|other|94043\n",
    "u.item": film(1, "Toy Story (1995)", "animation", "comedy") + film(2, "The Story of Us (1995)", "drama"),
    "u.data": "2\t1\t5\t881250949\n1\t2\t3\t1\n1\t1\t4\t2\n2\t2\t1\t3\n",
}


def write(folder: Path, **changes: str) -> Path:
    raw = folder / "raw"
    raw.mkdir()
    for name, text in {**FILES, **{key.replace("_", "."): text for key, text in changes.items()}}.items():
        (raw / name).write_text(text)
    return raw


def read(path: Path) -> list:
    store = RecordStore(path)
    return store.read(range(len(store)))[0].tolist()


def test_a_record_is_a_rating(tmp_path):
    counts = import_records("movielens", write(tmp_path), tmp_path / "stores", held_out=0.25)
    assert [Path(path).relative_to(tmp_path / "stores").as_posix() for path in counts] == [
        *("train/users.zarr", "train/films.zarr", "train/titles.zarr", "train/genres.zarr"),
        *("test/users.zarr", "test/films.zarr", "test/titles.zarr", "test/genres.zarr"),
        *("films/films.zarr", "films/titles.zarr", "films/genres.zarr"),
    ]
    stores = tmp_path / "stores"
    users = RecordStore(stores / "train" / "users.zarr")
    data, labels = users.read(range(3))
    assert (data.tolist(), labels.tolist(), str(labels.dtype)) == ([1, 0, 0], [5, 3, 4], "float32")
    assert users.vocabulary == ("1", "2")
    assert read(stores / "train" / "films.zarr") == [0, 1, 0]
    assert read(stores / "test" / "users.zarr") == [1]
    titles = RecordStore(stores / "films" / "titles.zarr")
    assert titles.vocabulary == ("<unk>", "story", "1995")
    assert read(titles.location) == [[0, 1, 2, -1, -1], [0, 1, 0, 0, 2]]
    assert read(stores / "test" / "titles.zarr") == [[0, 1, 0, 0, 2]]
    assert [sum(genres) for genres in read(stores / "train" / "genres.zarr")] == [2, 1, 2]
    assert RecordStore(stores / "films" / "films.zarr").vocabulary == ("Toy Story (1995)", "The Story of Us (1995)")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"u_data": "1\t1\t5\t3\n1 2 3 4\n"}, r"u\.data:2: 1 columns separated by tabs, not 4"),
        ({"u_data": "3\t1\t5\t3\n"}, r"u\.data:1: the user 3 is not in u\.user"),
        ({"u_data": "1\t1\t5\t3\n1\t9\t5\t3\n"}, r"u\.data:2: the film 9 is not in u\.item"),
        ({"u_data": "1\t1\t6\t3\n"}, r"u\.data:1: a rating is 1, 2, 3, 4 or 5, not '6'"),
        ({"u_data": ""}, r"u\.data is empty"),
        ({"u_data": "1\t1\t5\t3\n"}, "there would be no rating to test with"),
        ({"u_user": "1|24|M|x|1\n1|24|M|x|1\n"}, r"u\.user:2: the user 1 has a line already"),
        ({"u_item": "1|Toy Story|x\n"}, r"u\.item:1: 3 columns separated by \|, not 24"),
        ({"u_item": film(1, "A") * 2}, r"u\.item:2: the film 1 has a line already"),
        ({"u_item": film(1, " ")}, r"u\.item:1: the film 1 has no title"),
        ({"u_item": film(1, "A").replace("|0|", "|2|", 1)}, r"u\.item:1: genres are 0 or 1 each"),
    ],
)
def test_damaged_files_are_refused_with_file_and_line(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        import_records("movielens", write(tmp_path, **changes), tmp_path / "stores")


def test_a_missing_file_is_named(tmp_path):
    raw = write(tmp_path)
    (raw / "u.item").unlink()
    with pytest.raises(UserError, match=r"has no file u\.item"):
        import_records("movielens", raw, tmp_path / "stores")
