"""``dsinga data verify`` reads everything, and lists all that is damaged."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dsinga.data import verify_store, write_store
from dsinga.errors import UserError
from tests.faults.verdicts import run_dsinga
from tests.support.old_stores import remove_checksums

DATA = np.random.default_rng(3).integers(0, 256, (100, 60_000), dtype=np.uint8)  # four chunks


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "x.zarr", [(DATA, np.arange(100))])
    return tmp_path / "x.zarr"


def test_an_intact_store(store: Path) -> None:
    progress: list[tuple[int, int]] = []
    assert verify_store(store, progress=lambda *done: progress.append(done)) == (100, 5, True)
    assert progress == [(32, 200), (64, 200), (96, 200), (100, 200), (200, 200)]
    remove_checksums(store)
    assert verify_store(store) == (100, 5, False)


def test_all_damaged_chunks_are_listed(store: Path) -> None:
    shutil.copy(store / "data/c/0/0", store / "data/c/2/0")
    (store / "data/c/1/0").write_bytes(b"x")
    (store / "labels/c/0").unlink()
    with pytest.raises(UserError) as refused:
        verify_store(store)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{store}: 3 of 5 chunks are damaged; import it again with overwrite=True")
    assert re.fullmatch(r"  chunk data/c/1/0 cannot be read or decoded .*data/c/1/0 has 1 bytes only.*", lines[1])
    assert lines[2:] == [
        "  chunk data/c/2/0 has other records than were written",
        "  chunk labels/c/0 is missing",
    ]


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", [(np.ones((40, 1 << 20), np.uint8), None)])
    for path in (tmp_path / "x.zarr/data/c").iterdir():
        shutil.copy(tmp_path / "x.zarr/zarr.json", path / "0")
    with pytest.raises(UserError, match=r"(?s)5 of 5 chunks are damaged"):
        verify_store(tmp_path / "x.zarr")
    group = zarr.open_group(tmp_path / "own", mode="w")
    array: Any = group.create_array("x", data=np.ones((30, 1 << 18), np.float32), chunks=(1, 1 << 18))
    assert verify_store(tmp_path / "own") == (30, 30, False)
    for number in range(30):
        (tmp_path / f"own/x/c/{number}/0").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"(?s)30 of 30 chunks are damaged.*rows 0 to 0 of 'x' .*and 10 more"):
        verify_store(tmp_path / "own")
    assert array.shape == (30, 1 << 18)


def test_nothing_is_imported(tmp_path):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(UserError, match="images is no zarr array or group that can be opened; import it"):
        verify_store(tmp_path / "images")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_the_command_says_what_it_found(
    store: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [])  # which run_dsinga sets
    assert run_dsinga(["data", "verify", str(store)]) == 0
    assert capfd.readouterr().out == f"{store}: 100 records in 5 chunks are intact\n"
    (store / "data/c/3/0").unlink()
    assert run_dsinga(["data", "verify", str(store)]) == 2
    message = (
        f"dsinga: {store}: 1 of 5 chunks are damaged; import it again with --overwrite, or put back a copy of these"
    )
    assert capfd.readouterr().err.startswith(message)
    remove_checksums(store)
    (store / "data/c/3/0").write_bytes((store / "data/c/2/0").read_bytes())
    assert run_dsinga(["data", "verify", str(store)]) == 0
    assert "it has no checksums, so changed bytes may go unnoticed" in capfd.readouterr().out
