"""The importer of words and their contexts: by plain loops over the text."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.text.importers.sentences import ngrams, skipgrams, text_words
from dsinga.base.errors import UserError
from dsinga.data import import_records, open_store

TEXT = "The cat sat on the mat.\nThe dog's mat, on <unk> 12 mats: the cat!\n" * 30


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_words_are_in_lower_case_and_punctuation_is_apart(text: Path):
    first = "the cat sat on the mat . the dog's mat , on <unk> 12 mats : the cat !".split()
    assert text_words(str(text))[: len(first)] == first


def test_ngrams_are_each_word_after_those_before_it(text: Path, tmp_path: Path):
    stores = import_records("contexts", text, tmp_path / "out", window=3, min_count=31, held_out=0.2)
    assert [Path(path).relative_to(tmp_path / "out").as_posix() for path in stores] == [
        "ngrams/train_data.zarr", "skipgrams/train_data.zarr", "ngrams/test_data.zarr", "skipgrams/test_data.zarr",
    ]  # fmt: skip
    words = text_words(str(text))
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
    text = np.arange(5000, dtype=np.int32)  # each word once, so none is left out
    words, neighbours = skipgrams(text, 4)
    distances = np.abs(words - neighbours)
    counts = np.bincount(distances, minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 10_000, [1, 0.75, 0.5, 0.25], atol=0.02)
    assert (np.sort(words - neighbours)[[0, -1]] == [-4, 4]).all()
    assert (skipgrams(text, 4)[0] == words).all()


def test_frequent_words_are_left_out_more_often():
    rng = np.random.default_rng(1)
    text = np.where(rng.random(200_000) < 0.1, 0, rng.integers(1, 2000, 200_000))
    kept = np.bincount(skipgrams(text, 1)[0], minlength=2000) / 2 / np.bincount(text)
    assert kept[0] == pytest.approx(0.1, abs=0.01)  # the root of 0.001 / 0.1
    assert kept[1:].mean() == pytest.approx(1, abs=0.01)


def test_a_window_slides_by_one_word():
    x, y = ngrams(np.arange(6), 2)
    assert x.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert y.tolist() == [2, 3, 4, 5]


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
    with pytest.raises(UserError, match=message):
        import_records("contexts", path, tmp_path / "out", **options)
