"""Importers of CoNLL's sentences, of contexts of words, and of MovieLens's ratings."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.text.importers.conll import shape_of
from dsinga.addons.text.importers.movielens import GENRES
from dsinga.addons.text.importers.sentences import skipgrams, text_words
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, import_records, open_store, write_store
from tests.support.refusals import refused

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
        ("is O\nParis B-place\n", {"vocabulary": "train"}, r"sentences.conll:2: tag 'B-place' is not among .*B-loc"),
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
    refused(lambda: import_text(tmp_path, text, "destination", **options), message)
    assert not (tmp_path / "destination").exists()


def test_mistakes_are_named_with_their_remedies(tmp_path) -> None:
    for name in ("words", "shapes", "prefixes", "suffixes"):
        write_store(tmp_path / "train" / f"{name}.zarr", [(np.ones((1, 2)), None)])
    with pytest.raises(UserError, match="words.zarr has no vocabulary"):
        import_text(tmp_path, "is O\n", "val", vocabulary=str(tmp_path / "train"))
    raw = write_files(tmp_path)
    (raw / "u.item").unlink()
    refused(lambda: import_records("movielens", raw, tmp_path / "stores"), r"has no file u\.item")


TEXT = "The cat sat on the mat.\nThe dog's mat, on <unk> 12 mats: the cat!\n" * 30


@pytest.fixture
def text_of_words(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_words_are_in_lower_case_and_punctuation_is_apart(text_of_words: Path):
    first = "the cat sat on the mat . the dog's mat , on <unk> 12 mats : the cat !".split()
    assert text_words(str(text_of_words))[: len(first)] == first


def test_ngrams_are_each_word_after_those_before_it(text_of_words: Path, tmp_path: Path):
    stores = import_records("contexts", text_of_words, tmp_path / "out", window=3, min_count=31, held_out=0.2)
    assert [Path(path).relative_to(tmp_path / "out").as_posix() for path in stores] == [
        "ngrams/train_data.zarr", "skipgrams/train_data.zarr", "ngrams/test_data.zarr", "skipgrams/test_data.zarr",
    ]  # fmt: skip
    words = text_words(str(text_of_words))
    split = len(words) - round(0.2 * len(words))
    counts = Counter(words[:split])
    for part, start, stop in (("train", 0, split), ("test", split, len(words))):
        store = open_store(tmp_path / "out" / "ngrams" / f"{part}_data.zarr")
        known = [word if counts[word] >= 31 and word != "<unk>" else "<unk>" for word in words[start:stop]]
        x, y = store.read(range(len(store)))
        expected = [(known[k : k + 3], known[k + 3]) for k in range(len(known) - 3)]
        vocabulary = store.vocabulary
        assert [([vocabulary[c] for c in row], vocabulary[c]) for row, c in zip(x, y, strict=True)] == expected
    assert vocabulary[:2] == ("<unk>", "the")


def test_pairs_of_skipgrams_are_near_each_other_and_nearer_ones_are_more_frequent():
    text_of_words = np.arange(5000, dtype=np.int32)  # each word once, so none is left out
    words, neighbours = skipgrams(text_of_words, 4)
    distances = np.abs(words - neighbours)
    counts = np.bincount(distances, minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 10_000, [1, 0.75, 0.5, 0.25], atol=0.02)
    assert (np.sort(words - neighbours)[[0, -1]] == [-4, 4]).all()
    assert (skipgrams(text_of_words, 4)[0] == words).all()


def test_frequent_words_are_left_out_more_often():
    rng = np.random.default_rng(1)
    text_of_words = np.where(rng.random(200_000) < 0.1, 0, rng.integers(1, 2000, 200_000))
    kept = np.bincount(skipgrams(text_of_words, 1)[0], minlength=2000) / 2 / np.bincount(text_of_words)
    assert kept[0] == pytest.approx(0.1, abs=0.01)  # the root of 0.001 / 0.1
    assert kept[1:].mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"one two three", {}, "has 3 words: with held_out 0.1 and window 4, training or test would have no record"),
        (TEXT.encode(), {"window": 0}, "window is 0; give the number of words before a word"),
        (TEXT.encode(), {"held_out": 0.0}, "training or test would have no record"),
    ],
)
def test_bad_texts_and_options_are_refused(content: bytes, options: dict, message: str, tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    refused(lambda: import_records("contexts", path, tmp_path / "out", **options), message)


def film(number: int, title: str, *genres: str) -> str:
    return f"{number}|{title}|01-Jan-1995||http://x|{'|'.join(str(int(genre in genres)) for genre in GENRES)}\n"


FILES = {
    "u.user": "1|24|M|technician|85711\n2|53|F|other|94043\n",
    "u.item": film(1, "Toy Story (1995)", "animation", "comedy") + film(2, "The Story of Us (1995)", "drama"),
    "u.data": "2\t1\t5\t881250949\n1\t2\t3\t1\n1\t1\t4\t2\n2\t2\t1\t3\n",
}


def write_files(folder: Path, **changes: str) -> Path:
    raw = folder / "raw"
    raw.mkdir()
    for name, text in {**FILES, **{key.replace("_", "."): text for key, text in changes.items()}}.items():
        (raw / name).write_text(text)
    return raw


def read(path: Path) -> list:
    store = RecordStore(path)
    return store.read(range(len(store)))[0].tolist()


def test_a_record_is_a_rating(tmp_path):
    counts = import_records("movielens", write_files(tmp_path), tmp_path / "stores", held_out=0.25)
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
    refused(lambda: import_records("movielens", write_files(tmp_path, **changes), tmp_path / "stores"), message)
