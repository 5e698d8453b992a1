"""Importers of sentences with a label by file and of pairs of sentences: codes, labels, errors with file and line."""

import logging
from pathlib import Path

import pytest

from dsinga.addons.text.vocabulary import is_held_out
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, import_records
from tests.support.refusals import refused

FILES = {"raw/reviews.pos": b"A good film\ngood , GOOD !\n", "raw/reviews.neg": b"a bad film\n"}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    return folder / "raw"


def imported(folder: Path, files: dict[str, bytes], name: str = "store", **options: object) -> RecordStore:
    import_records("sentences", write(folder, files), folder / name, **{"held_out": 0.0, **options})
    return RecordStore(folder / name)


def test_words_have_codes_by_frequency_and_classes_by_extension(tmp_path):
    store = imported(tmp_path, FILES)
    assert store.classes == ("neg", "pos")
    assert store.vocabulary == ("<unk>", "good", "a", "film")
    data, labels = store.read(range(3))
    assert data.tolist() == [[2, 0, 3, -1], [2, 1, 3, -1], [1, 0, 1, 0]]
    assert labels.tolist() == [0, 1, 1]


def test_classes_have_the_names_of_files_where_these_differ(tmp_path):
    files = {"raw/good.txt": b"x\n", "raw/bad.txt": b"y\n", "raw/.hidden": b"\n"}
    assert imported(tmp_path, files).classes == ("bad", "good")


def test_a_share_of_each_class_is_held_out_evenly_spaced(tmp_path):
    lines = {f"raw/x.{name}": b"".join(b"%s w%d\n" % (name.encode(), n) for n in range(25)) for name in ("a", "b")}
    raw = write(tmp_path, lines)
    counts = import_records("sentences", raw, tmp_path / "stores", held_out=0.2, min_count=1)
    assert [*counts.values()] == [40, 10]
    test = RecordStore(tmp_path / "stores" / "test_data.zarr")
    train = RecordStore(tmp_path / "stores" / "train_data.zarr")
    assert test.vocabulary == train.vocabulary
    assert "w4" not in train.vocabulary, "words of held-out sentences alone are unknown"
    data, labels = test.read(range(10))
    assert labels.tolist() == [0, 1] * 5
    assert {train.vocabulary[code] for code in data[:, 0]} == {"a", "b"}
    assert not data[:, 1].any()


@pytest.mark.parametrize("share", [0.1, 0.2, 0.25, 1 / 3])
def test_the_held_out_records_are_the_share_of_all(share: float):
    count = sum(is_held_out(number, share) for number in range(1200))
    assert count == pytest.approx(1200 * share, abs=1)


def test_other_sentences_get_the_codes_of_training(tmp_path):
    train = imported(tmp_path, FILES)
    more = {"raw/reviews.pos": b"film good new\n", "raw/reviews.neg": b"a\n"}
    store = imported(tmp_path, more, "more", vocabulary=str(tmp_path / "store"), held_out=0.5)
    assert store.vocabulary == train.vocabulary
    assert store.read(range(2))[0].tolist() == [[2, -1, -1], [3, 1, 0]]


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"raw/r.neg": b"fine\n\nfine\n"}, {}, r"r\.neg:2: an empty sentence; remove the line"),
        ({"raw/r.neg": b"fine\nna\xefve\n"}, {}, r"r\.neg:2: not utf-8 text .* --encoding \(for instance latin-1\)"),
        ({"raw/r.neg": b""}, {}, r"r\.neg has no sentences"),
        ({"raw/r.neg": b"x\n"}, {"encoding": "martian"}, "no encoding 'martian'"),
        ({"raw/r.neg": b"x\n"}, {"min_count": 0}, "min_count is 0"),
        ({"raw/r.neg": b"x\n"}, {"held_out": 0.1}, r"2 sentences: with held_out 0\.1 test_data\.zarr would be empty"),
        ({"raw/reviews.new": b"x\n"}, {"vocabulary": "store"}, "classes neg, new, pos, .* neg, pos"),
    ],
)
def test_damaged_files_are_refused_with_file_and_line(tmp_path, files, options, message):
    if "vocabulary" in options:
        imported(tmp_path, FILES)
        options = {"vocabulary": str(tmp_path / "store")}
    with pytest.raises(UserError, match=message):
        imported(tmp_path, {"raw/r.pos": b"x\n", **files} if "vocabulary" not in options else files, "new", **options)


def test_a_folder_with_one_file_is_refused(tmp_path):
    refused(lambda: imported(tmp_path, {"raw/r.pos": b"x\n"}), "has r.pos", "give a folder")


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
    refused(lambda: import_pairs(tmp_path, source, target, **options), message)
    assert not (tmp_path / "train").exists()
