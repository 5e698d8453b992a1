"""Texts as stores of codes, their vocabularies, and the windows that the rows of a batch read."""

import os
from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.text.vocabulary import SymbolEncoder, decode, encode
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, TextWindows, import_records, open_text, write_store
from dsinga.job import loads
from dsinga.reading.bind_records import bind_records
from dsinga.reading.sampler import Sampler
from dsinga.testing import SourceContract
from tests.support.refusals import refused

TEXT = "a cab\nabba\n" * 20  # 220 characters: blank, line end, a, b, c


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text(TEXT)
    return path


def read_back(location: Path) -> str:
    store = RecordStore(location)
    codes, labels = store.read(range(len(store)))
    assert labels is None
    return "".join(store.vocabulary[code] for code in codes)


def test_characters_are_bytes_of_any_encoding(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    (tmp_path / "all").write_bytes(content)
    import_records("text", tmp_path / "all", tmp_path / "out.zarr")
    assert read_back(tmp_path / "out.zarr").encode("latin-1") == content


def test_words_have_codes_by_decreasing_frequency(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the cat\n  the dög\n\n")
    import_records("text", tmp_path / "in", tmp_path / "out.zarr", words=True)
    store = RecordStore(tmp_path / "out.zarr")
    assert store.vocabulary == ("</s>", "the", "cat", "dög")
    assert store.dtype == np.int32
    np.testing.assert_array_equal(store.read(range(7))[0], [1, 2, 0, 1, 3, 0, 0])


def test_the_end_of_a_text_is_held_out(text: Path, tmp_path: Path) -> None:
    counts = import_records("text", text, tmp_path / "imports", held_out=0.1)
    assert {Path(name).name: count for name, count in counts.items()} == {"train_data.zarr": 198, "test_data.zarr": 22}
    train, test = (tmp_path / "imports" / name for name in ("train_data.zarr", "test_data.zarr"))
    assert read_back(train) + read_back(test) == TEXT
    assert RecordStore(train).vocabulary == RecordStore(test).vocabulary


def test_another_text_gets_the_codes_of_the_first(text: Path, tmp_path: Path) -> None:
    import_records("text", text, tmp_path / "out.zarr")
    (tmp_path / "more").write_text("cc a")
    import_records("text", tmp_path / "more", tmp_path / "more.zarr", vocabulary=str(tmp_path / "out.zarr"))
    np.testing.assert_array_equal(RecordStore(tmp_path / "more.zarr").read(range(4))[0], [4, 4, 1, 2])


def test_held_out_is_a_fraction_of_the_text_without_skipped_symbols(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("aaaaaaaaxxxxxxxx")
    (tmp_path / "known").write_text("a")
    import_records(
        "text", tmp_path / "in", tmp_path / "out", vocabulary=str(tmp_path / "known"), skip_unseen=True, held_out=0.5
    )
    assert [len(RecordStore(tmp_path / "out" / f"{part}_data.zarr")) for part in ("train", "test")] == [4, 4]


def test_unseen_words_are_unknown_left_out_or_refused(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one two\n")
    (tmp_path / "known").write_text("</s>\none\n<unk>\n")
    (tmp_path / "few").write_text("</s>\none\n")

    def codes(vocabulary: str, **options: bool) -> list[int]:
        out = tmp_path / "out.zarr"
        chosen = str(tmp_path / vocabulary)
        import_records("text", tmp_path / "in", out, overwrite=True, words=True, vocabulary=chosen, **options)
        return RecordStore(out).read(range(len(RecordStore(out))))[0].tolist()

    assert codes("known") == [1, 2, 0]
    assert codes("few", skip_unseen=True) == [1, 0]
    refused(lambda: codes("few"), r"in:1: the word 'two' is not in the vocabulary.*--skip-unseen")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "has no characters"),
        (b"abd", {"vocabulary": "vocab"}, r"byte 2 is the character 'd', which the vocabulary lacks.*--held-out"),
        (b"xyz", {"vocabulary": "vocab", "skip_unseen": True}, "has none of the characters of .*vocab"),
        (b"ab", {"vocabulary": "nothing"}, "nothing cannot be read"),
        (b"ab", {"vocabulary": "twice"}, "has the character 'a' twice; list each character once"),
        (b"ab", {"held_out": 1.0}, "held_out is 1.0"),
        (b"ab", {"held_out": 0.1}, "would be empty"),
        (b"\xff\n", {"words": True}, r"in:1: not UTF-8 text"),
    ],
)
def test_faults_are_named(tmp_path: Path, content: bytes, options: dict[str, object], message: str) -> None:
    (tmp_path / "in").write_bytes(content)
    (tmp_path / "vocab").write_text("abc")
    (tmp_path / "twice").write_text("aba")
    if "vocabulary" in options:
        options = {**options, "vocabulary": str(tmp_path / str(options["vocabulary"]))}
    refused(lambda: import_records("text", tmp_path / "in", tmp_path / "out", **options), message)
    assert not (tmp_path / "out").exists()


class TestOpenText:
    def test_a_file_is_imported_by_its_vocabulary_and_again_when_that_changes(self, text: Path) -> None:
        vocabulary = text.with_name("vocab.txt")
        vocabulary.write_text("cba \n")
        store = open_text("input.txt", "vocab.txt", roots=[str(text.parent)])
        assert store.vocabulary == ("c", "b", "a", " ", "\n")
        modified = os.stat(store.location).st_mtime_ns
        assert os.stat(open_text(text, vocabulary).location).st_mtime_ns == modified
        vocabulary.write_text("\n abc")
        assert open_text(text, vocabulary).vocabulary == ("\n", " ", "a", "b", "c")

    def test_an_imported_store_beside_a_file_needs_no_vocabulary(self, text: Path) -> None:
        import_records("text", text, text.with_suffix(".zarr"))
        assert len(open_text(text, "vocab.txt")) == len(TEXT)

    def test_mistakes_are_named_with_their_remedies(self, text: Path) -> None:
        refused(lambda: open_text(text), r"without a vocabulary; set vocab_path.*dsinga data import text")
        import_records("text", text, text.with_suffix(".zarr"))
        text.with_name("vocab.txt").write_text("abcdefghijkl\n ")
        refused(lambda: open_text(text.with_suffix(".zarr"), text.with_name("vocab.txt")), "another vocabulary")


class TestWindows:
    @pytest.fixture
    def windows(self, text: Path) -> TextWindows:
        import_records("text", text, text.with_suffix(".zarr"))
        return TextWindows(RecordStore(text.with_suffix(".zarr")), batchsize=3, steps=10)

    def test_each_row_reads_consecutive_windows_of_its_stream(self, windows: TextWindows) -> None:
        stream = len(TEXT) // 3
        steps = (stream - 1) // 10
        assert (len(windows), windows.shape) == (steps * 3, (11,))
        sampler = Sampler(len(windows), 3, seed=1, chunk=windows.block, shuffle=False)
        for step in range(2 * steps):
            data, labels = windows.read(sampler.rows(step))
            assert labels is None
            for row, codes in enumerate(data):
                start = row * stream + step % steps * 10
                read = "".join(windows.vocabulary[code] for code in codes)
                assert read == TEXT[start : start + 11]

    def test_mistakes_are_named_with_their_remedies(self, windows: TextWindows, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"has 220 codes, too few for 30 rows of 11; .*batchsize"):
            TextWindows(RecordStore(windows.location), batchsize=30, steps=10)
        write_store(tmp_path / "images.zarr", [(np.zeros((9, 4), np.uint8), None)])
        refused(lambda: TextWindows(RecordStore(tmp_path / "images.zarr"), 2, 3), r"text with: dsinga data import text")


def test_words_that_are_not_in_the_vocabulary_get_the_code_of_unk() -> None:
    encoder = SymbolEncoder(("the", "<unk>", "cat"))
    assert encoder.encode("the  dog cat\n") == [0, 1, 2]
    assert encoder.encode_symbols(["<unk>", "a b"]) == [1, 1]
    assert encoder.encode(" ") == []


def test_characters_are_bytes_of_utf_8() -> None:
    symbols = tuple(sorted(set("aé".encode().decode("latin-1"))))
    assert decode(encode("éa", symbols), symbols) == "éa"


def test_a_text_layer_takes_no_records(tmp_path: Path) -> None:
    job = loads('neuralnet { layer { name: "data" type: kCharRNN char_rnn_conf { path: "a" } } }')
    refused(lambda: bind_records(job, np.zeros((3, 2), np.float32)), "layer 'data' reads a text, not records")


class TestRowsOfAText(SourceContract):
    @pytest.fixture(autouse=True)
    def _store(self, tmp_path: Path) -> None:
        write_store(tmp_path / "text.zarr", [(np.arange(99, dtype=np.uint8), None)])
        self.path = tmp_path / "text.zarr"

    def create(self) -> TextWindows:
        return TextWindows(RecordStore(self.path), 3, 5)
