"""The importer of sentence pairs: codes of both languages, labels, pairs left out, and errors with file and line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dsinga.data import RecordStore, import_records
from dsinga.errors import UserError

SOURCE, TARGET = "Das Haus\ndas alte haus .\n", "the house\nthe old House .\n"


def import_pairs(
    folder: Path, source: str, target: str, name: str = "train", /, **options: object
) -> list[RecordStore]:
    (folder / "x.de").write_text(source, encoding="utf-8")
    (folder / "x.en").write_text(target, encoding="utf-8")
    import_records("pairs", folder / "x.de", folder / name, **{"target": str(folder / "x.en"), **options})
    return [RecordStore(folder / name / f"{side}.zarr") for side in ("source", "target")]


def test_the_labels_of_the_target_are_the_next_words(tmp_path):
    source, target = import_pairs(tmp_path, SOURCE, TARGET)
    assert source.vocabulary == ("<unk>", "das", "haus")
    assert source.read(range(2))[0].tolist() == [[1, 2, -1, -1], [1, 0, 2, 0]]
    assert not source.has_labels
    assert target.vocabulary == ("<unk>", "<s>", "</s>", "the", "house")
    data, labels = target.read(range(2))
    assert data.tolist() == [[1, 3, 4, -1, -1], [1, 3, 0, 4, 0]]
    assert labels.tolist() == [[3, 4, 2, -1, -1], [3, 0, 4, 0, 2]]


def test_other_pairs_get_the_codes_of_training(tmp_path):
    import_pairs(tmp_path, SOURCE, TARGET)
    source, target = import_pairs(tmp_path, "haus neu\n", "new the\n", "val", vocabulary=str(tmp_path / "train"))
    assert source.read([0])[0].tolist() == [[2, 0]]
    assert [part.tolist() for part in target.read([0])] == [[[1, 0, 3]], [[0, 3, 2]]]


def test_longer_pairs_are_left_out_and_counted(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "dsinga"):
        source, target = import_pairs(tmp_path, SOURCE, TARGET, max_length=3, min_count=1)
    assert [len(store) for store in (source, target)] == [1, 1]
    assert "1 of 2 pairs are left out: more than 3 words" in caplog.text
    assert "old" not in target.vocabulary


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ("a\nb\n", "a\nb\nc\n", {}, r"x.en:3: .*x.de has no line for this one: it has 2 lines, .*x.en has 3"),
        ("a\n", "\n", {}, "x.en:1: an empty sentence; remove the line from both files"),
        ("a\nb\n", "a\n<s> b\n", {}, "x.en:2: the word <s> marks the ends of sentences"),
        ("a b\n", "a\n", {"max_length": 1}, "every pair has a sentence of more than 1 words"),
        ("a\n", "a\n", {"max_length": 0}, "max_length is 0; give 1"),
        ("a\n", "a\n", {"target": None}, "needs the file of its translations; give it by target"),
        ("a\n", "a\n", {"target": "nowhere"}, "nowhere does not exist"),
        ("a\n", "a\n", {"vocabulary": "nowhere"}, "no store at .*nowhere/source.zarr"),
    ],
)
def test_errors_are_raised_before_a_store_is_written(tmp_path, source, target, options, message):
    with pytest.raises(UserError, match=message):
        import_pairs(tmp_path, source, target, **options)
    assert not (tmp_path / "train").exists()
