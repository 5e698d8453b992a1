"""The importer of tagged sentences: codes, tags, features of words, and errors with file and line."""

from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.text.importers.conll import shape_of
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, import_records, write_store

TRAIN = """-DOCSTART-\tO

Paris\tB-location
is\tO
is\tO

paris\tB-location
hilton\tI-person
"""


def write(folder: Path, text: str) -> Path:
    (folder / "sentences.conll").write_text(text, encoding="utf-8")
    return folder / "sentences.conll"


def import_text(folder: Path, text: str, name: str = "train", **options: object) -> dict[str, RecordStore]:
    import_records("conll", write(folder, text), folder / name, **options)
    return {part.stem: RecordStore(part) for part in (folder / name).iterdir()}


def rows(store: RecordStore) -> tuple[list, list | None]:
    data, labels = store.read(range(len(store)))
    return data.tolist(), None if labels is None else labels.tolist()


def test_words_have_codes_by_frequency_and_tags_by_type(tmp_path):
    words = import_text(tmp_path, TRAIN)["words"]
    assert words.vocabulary == ("<unk>", "paris", "is")  # hilton occurs once only
    assert words.classes == ("O", "B-location", "I-location", "B-person", "I-person")
    assert rows(words) == ([[1, 2, 2], [1, 0, -1]], [[1, 0, 0], [1, 4, -1]])


def test_features_of_words_are_separate_stores(tmp_path):
    stores = import_text(tmp_path, TRAIN, min_count=1)
    assert set(stores) == {"words", "shapes", "prefixes", "suffixes"}
    assert {store.shape for store in stores.values()} == {(3,)}
    symbols = {name: [store.vocabulary[code] for code in rows(store)[0][0]] for name, store in stores.items()}
    assert symbols == {
        "words": ["paris", "is", "is"],
        "shapes": ["Xx", "x", "x"],
        "prefixes": ["par", "is", "is"],
        "suffixes": ["ris", "is", "is"],
    }
    assert not any(store.has_labels for name, store in stores.items() if name != "words")


@pytest.mark.parametrize(
    ("word", "shape"),
    [("Paris", "Xx"), ("B52S", "XdX"), ("#1", "#d"), ("U.S.", "X.X."), ("don't", "x'x"), ("été", "x")],
)
def test_shapes(word: str, shape: str):
    assert shape_of(word) == shape


def test_other_sentences_get_the_codes_of_training(tmp_path):
    import_text(tmp_path, TRAIN)
    words = import_text(
        tmp_path, "is O\nBerlin B-location\nparis O\nis O\n", "val", vocabulary=str(tmp_path / "train")
    )["words"]
    assert words.vocabulary == ("<unk>", "paris", "is")
    assert rows(words) == ([[2, 0, 1, 2]], [[0, 1, 0, 0]])


def test_without_tags_labels_are_zero_padded_with_minus_one(tmp_path):
    import_text(tmp_path, TRAIN)
    folder = str(tmp_path / "train")
    words = import_text(tmp_path, "is\nparis\n\nis\n", "new", vocabulary=folder, has_label=False)["words"]
    assert rows(words) == ([[2, 1], [2, -1]], [[0, 0], [0, -1]])
    assert words.classes[1] == "B-location"


def test_other_kinds_of_tags_are_in_alphabetical_order(tmp_path):
    assert import_text(tmp_path, "the D\nB-52 N\nis V\n")["words"].classes == ("D", "N", "V")


def test_the_tag_is_the_last_column(tmp_path):
    assert import_text(tmp_path, "the D I-NP O\nB-52 N I-NP B-x\n")["words"].classes == ("O", "B-x", "I-x")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "is O\nParis B-place\n",
            {"vocabulary": "train"},
            r"sentences.conll:2: tag 'B-place' is not among the tags of .*B-loc",
        ),
        ("is O\nParis\n", {}, "sentences.conll:2: 'Paris' has no tag; use --no-label"),
        ("the cat sat on\nthe mat\n", {}, "sentences.conll:2: 2 columns, but the lines before have 4"),
        ("\n\n", {}, "sentences.conll has no sentences"),
        ("is O\n", {"vocabulary": "nowhere"}, "no store at .*nowhere/words.zarr"),
    ],
)
def test_errors_are_raised_before_a_store_is_written(tmp_path, text: str, options: dict, message: str):
    import_text(tmp_path, TRAIN)
    if "vocabulary" in options:
        options = {"vocabulary": str(tmp_path / options["vocabulary"])}
    with pytest.raises(UserError, match=message):
        import_text(tmp_path, text, "destination", **options)
    assert not (tmp_path / "destination").exists()


def test_stores_without_a_vocabulary_are_refused(tmp_path):
    for name in ("words", "shapes", "prefixes", "suffixes"):
        write_store(tmp_path / "train" / f"{name}.zarr", [(np.ones((1, 2)), None)])
    with pytest.raises(UserError, match="words.zarr has no vocabulary"):
        import_text(tmp_path, "is O\n", "val", vocabulary=str(tmp_path / "train"))
