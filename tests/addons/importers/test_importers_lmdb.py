"""LMDB databases are read page by page: the same pairs as by LMDB itself, and one message where a page is damaged."""

import random
from pathlib import Path

import lmdb
import numpy as np
import pytest

from dsinga.addons.importers.lmdb import LmdbError, LmdbPages
from dsinga.base.errors import UserError
from dsinga.data import import_records
from tests.support.data_sources import pixels

LENGTHS = (0, 1, 50, 800, 2030, 2040, 4080, 4096, 20_000)  # of values, some of which need pages of their own


def write(folder: Path, rng: random.Random, transactions: int, most: int) -> Path:
    """Write a database with random pairs, some of which are deleted again; return its file."""
    keys: list[bytes] = []
    with lmdb.open(str(folder / "db"), map_size=1 << 28) as environment:
        for _ in range(transactions):
            with environment.begin(write=True) as transaction:
                for _ in range(rng.randrange(1, most)):
                    if keys and rng.random() < 0.3:
                        transaction.delete(keys.pop(rng.randrange(len(keys))))
                    else:
                        keys.append(rng.randbytes(rng.choice((1, 8, 200, 511))))
                        transaction.put(keys[-1], rng.randbytes(rng.choice(LENGTHS)))
    return folder / "db" / "data.mdb"


def read(path: Path) -> list[tuple[bytes, bytes]]:
    with path.open("rb") as file:
        return list(LmdbPages(file).pairs())


@pytest.mark.parametrize(("transactions", "most"), [(0, 0), (1, 2), (1, 300), (3, 2000), (8, 300)])
def test_the_pairs_are_those_that_lmdb_reads(tmp_path: Path, transactions: int, most: int) -> None:
    path = write(tmp_path, random.Random(transactions), transactions, most)
    with lmdb.open(str(path.parent), readonly=True, lock=False) as environment, environment.begin() as transaction:
        assert read(path) == list(transaction.cursor())


def test_a_cut_database_is_refused_whatever_is_left(tmp_path: Path) -> None:
    """LMDB itself ends the process by SIGBUS where a page lies beyond the end of the file."""
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        for number in range(300):
            transaction.put(b"k%04d" % number, pixels(np.zeros((4, 4), np.uint8), 1))
    path = tmp_path / "db" / "data.mdb"
    content = path.read_bytes()
    for length in [*range(0, len(content), 4096), 100, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"db (cannot be opened as an LMDB database|is damaged): .* ends at byte"):
            import_records("lmdb", tmp_path / "db", tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_damaged_bytes_raise_one_kind_of_error(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = write(tmp_path, rng, 2, 200)
    content = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 5))):
            damaged[rng.randrange(min(len(damaged), rng.choice((200, 8192, 1 << 30))))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except LmdbError:
            refused += 1
    assert refused > 20


def test_a_branch_that_leads_back_to_itself_ends(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 28) as environment, environment.begin(write=True) as transaction:
        for number in range(5000):
            transaction.put(b"%08d" % number, bytes(1000))
    path = tmp_path / "db" / "data.mdb"
    content = bytearray(path.read_bytes())
    [root] = {int.from_bytes(content[start + 128 :][:8], "little") for start in (0, 4096)} - {(1 << 64) - 1}
    start = root * 4096
    for at in range(16, int.from_bytes(content[start + 12 :][:2], "little"), 2):  # each child becomes the root itself
        node = start + int.from_bytes(content[start + at :][:2], "little")
        content[node : node + 6] = root.to_bytes(6, "little")
    path.write_bytes(content)
    with pytest.raises(LmdbError, match=r"page \d+ is (not the leaf page of a tree|in the tree twice)"):
        read(path)


def test_a_database_within_the_database_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20, max_dbs=1) as environment:
        environment.open_db(b"inner")
    with pytest.raises(UserError, match="db is damaged: the key b'inner' has a database or several values, not one"):
        import_records("lmdb", tmp_path / "db", tmp_path / "out.zarr")
