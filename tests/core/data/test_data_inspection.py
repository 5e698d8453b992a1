"""What is in a source, and what a net needs for its labels; what is damaged in a store."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from dsinga.base.errors import UserError
from dsinga.commands.data import info
from dsinga.data import describe, open_records, open_store, verify_store, write_store
from tests.core.data.test_data_zarr import ZEROS, write_group
from tests.support.old_stores import remove_checksums
from tools.faults.verdicts import run_dsinga


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (np.array([0, 2, 2, 2]), (), ({"0": 1, "2": 3}, 3)),
        (np.array([0, 2, 2, 2]), ("a", "b", "c", "d"), ({"a": 1, "c": 3}, 4)),
        (np.array([-7, 2, 2, 2]), (), ({"-7": 1, "2": 3}, None)),
        (np.array([[0, 1, -1]] * 4), (), ({"0": 4, "1": 4}, 2)),
        (np.array([[0, 1, 3]] * 4), (), ({"0": 4, "1": 4, "3": 4}, 4)),
        (np.array([[0, 1, 1]] * 4), (), ({"0": 4, "1": 8}, 3)),
    ],
)
def test_integer_labels_are_counted(tmp_path, labels, classes, expected):
    write_store(tmp_path / "s.zarr", [(ZEROS, labels)], classes=classes)
    facts = describe(open_store(tmp_path / "s.zarr"))
    assert (facts["labels"], facts["outputs"]) == expected
    assert (facts["label_shape"], facts["label_dtype"]) == (labels.shape[1:], "int64")
    assert "label_values" not in facts


@pytest.mark.parametrize("shape", [(500,), (500, 3)])
def test_float_labels_are_described_as_numbers(tmp_path: Path, shape: tuple[int, ...]) -> None:
    labels = np.random.default_rng(0).normal(3, 2, shape).astype(np.float32)
    path = write_group(tmp_path / "g", {"x": np.zeros((500, 2)), "y": labels})
    facts = describe(open_store(path))
    assert (facts["labels"], facts["outputs"], facts["label_dtype"]) == (None, labels[0].size, "float32")
    exact = {"rows": 500, "min": labels.min(), "max": labels.max(), "mean": labels.mean(), "std": labels.std()}
    assert facts["label_values"] == pytest.approx(exact, rel=1e-5)


def test_more_labels_than_classes_are_described_as_numbers(tmp_path: Path) -> None:
    path = write_group(tmp_path / "g", {"x": np.zeros((2000, 1)), "y": np.arange(2000)})
    facts = describe(open_store(path))
    assert (facts["labels"], facts["outputs"]) == (None, 2000)
    assert facts["label_values"]["mean"] == pytest.approx(999.5)


def test_values_are_those_of_blocks_spread_over_the_source(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(5, 3, (10 * 256, 1024)).astype(np.float32)
    write_group(tmp_path / "g", {"x": data})
    sample = describe(open_store(tmp_path / "g"))["sample"]
    part = data.astype(np.float64)
    assert sample == pytest.approx(
        {"rows": 2560, "min": part.min(), "max": part.max(), "mean": part.mean(), "std": part.std()}
    )
    array = zarr.create_array(tmp_path / "large", shape=(1_000_000, 1024), chunks=(256, 1024), dtype="f4", fill_value=2)
    assert describe(open_store(tmp_path / "large"))["sample"]["rows"] == 15 * 256 + array.shape[0] % 256


def test_what_is_not_finite_is_counted(tmp_path: Path) -> None:
    data = np.array([[1, np.nan], [np.inf, 3], [2, 2]])
    facts = describe(open_store(write_group(tmp_path / "g", {"x": data})))
    assert facts["sample"] == pytest.approx({"rows": 3, "min": 1, "max": 3, "mean": 2, "std": 0.5**0.5, "nonfinite": 2})
    facts = describe(open_store(write_group(tmp_path / "n", {"x": data * np.nan})))
    assert facts["sample"] == {"rows": 3, "nonfinite": 6}


def test_the_padding_of_sequences_is_described():
    codes = np.array([[1, 2, -1, -1], [3, -1, -1, -1], [4, 5, 6, -1]], np.int32)
    assert describe(open_records(codes))["steps"] == {"longest": 3, "mean": 2.0, "padding": 0.5}
    assert "steps" not in describe(open_records(np.abs(codes)))
    assert "steps" not in describe(open_records(codes.astype(np.float32)))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_command_describes_any_group(tmp_path: Path, zarr_format: int) -> None:
    arrays = {"t/images": np.full((4, 2, 2), 7, np.uint8), "t/kinds": np.array([0, 1, 1, 5])}
    path = write_group(tmp_path / "g", arrays, zarr_format, **{"t/images": {"chunks": (2, 2, 1)}})
    result = CliRunner().invoke(info, [str(path), "--data", "t/images", "--label", "t/kinds"])
    lines = dict(line.split(None, 1) for line in result.output.splitlines())
    assert lines["kind"] == f"zarr {zarr_format} group"
    assert lines["data_array"] == "t/images (4, 2, 2) uint8"
    assert lines["data_chunks"] == "(2, 2, 1)"
    assert lines["labels"] == "{'0': 1, '1': 2, '5': 1}"
    assert lines["outputs"] == "6"
    assert lines["sample"] == "4 rows, min 7, max 7, mean 7, std 0"


CHUNKS = np.random.default_rng(3).integers(0, 256, (100, 60_000), dtype=np.uint8)  # four chunks


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "x.zarr", [(CHUNKS, np.arange(100))])
    return tmp_path / "x.zarr"


def test_an_intact_store(store: Path) -> None:
    progress: list[tuple[int, int]] = []
    assert verify_store(store, progress=lambda *done: progress.append(done))[:3] == (100, 5, True)
    assert progress == [(32, 200), (64, 200), (96, 200), (100, 200), (200, 200)]
    remove_checksums(store)
    assert verify_store(store)[:3] == (100, 5, False)


def test_all_damaged_chunks_are_listed(store: Path) -> None:
    shutil.copy(store / "data/c/0/0", store / "data/c/2/0")
    (store / "data/c/1/0").write_bytes(b"x")
    (store / "labels/c/0").unlink()
    with pytest.raises(UserError) as refused:
        verify_store(store)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{store}: 3 of 5 chunks are damaged; import it again with overwrite=True")
    assert re.fullmatch(r"  chunk data/c/1/0 cannot be read or decoded .*data/c/1/0 has 1 bytes only.*", lines[1])
    assert lines[2:] == ["  chunk data/c/2/0 has other records than were written", "  chunk labels/c/0 is missing"]


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", [(np.ones((40, 1 << 20), np.uint8), None)])
    for path in (tmp_path / "x.zarr/data/c").iterdir():
        shutil.copy(tmp_path / "x.zarr/zarr.json", path / "0")
    with pytest.raises(UserError, match=r"(?s)5 of 5 chunks are damaged"):
        verify_store(tmp_path / "x.zarr")
    group = zarr.open_group(tmp_path / "own", mode="w")
    array: Any = group.create_array("x", data=np.ones((30, 1 << 18), np.float32), chunks=(1, 1 << 18))
    assert verify_store(tmp_path / "own")[:3] == (30, 30, False)
    for number in range(30):
        (tmp_path / f"own/x/c/{number}/0").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"(?s)30 of 30 chunks are damaged.*chunk x/c/0/0 cannot be read .*and 10 more"):
        verify_store(tmp_path / "own")
    assert array.shape == (30, 1 << 18)


def test_nothing_is_imported(tmp_path):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(UserError, match="images is no zarr array or group that can be opened; import it"):
        verify_store(tmp_path / "images")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_the_command_says_what_it_found(store, capfd, monkeypatch):
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
