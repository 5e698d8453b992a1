"""Texts imported with a tokenizer.json: the ids of Hugging Face's tokenizers, and what is refused."""

from pathlib import Path

import pytest

import dsinga
from dsinga import models
from dsinga.addons.text.vocabulary import Tokenizer, read_tokenizer
from dsinga.base.errors import UserError
from dsinga.data import import_records, open_text
from dsinga.job import JobError
from tests.support.programs import python
from tests.support.refusals import refused

tokenizers = pytest.importorskip("tokenizers")
TEXT = "The quick brown fox – naïve, yes – jumps over the lazy dog.\n\nIt's 2026; don't   stop. 日本語 too!\n" * 30


def save(path: Path, kind: str) -> Path:
    """Train a tokenizer of a kind on TEXT, with truncation and padding, and write its tokenizer.json."""
    if kind == "byte-level":  # as of GPT-2 and LLaMA 3
        library = tokenizers.Tokenizer(tokenizers.models.BPE())
        library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    else:  # as of BERT
        library = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        library.normalizer = tokenizers.normalizers.Lowercase()
        library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        library.decoder = tokenizers.decoders.WordPiece()
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    library.train_from_iterator([TEXT], trainer)
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.get_vocab_size() - 1)]
    )
    library.enable_truncation(8)
    library.enable_padding(length=8)
    library.save(str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text, two tokenizers, and the text imported with the first."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "input.txt").write_text(TEXT)
    save(folder / "tokenizer.json", "byte-level")
    save(folder / "wordpiece.json", "WordPiece")
    import_records("text", folder / "input.txt", folder, vocabulary=str(folder / "tokenizer.json"), held_out=0.1)
    return folder


@pytest.mark.parametrize("name", ["tokenizer.json", "wordpiece.json"])
def test_codes_are_the_ids_of_the_library(name: str, folder: Path, tmp_path: Path):
    import_records("text", folder / "input.txt", tmp_path / "text.zarr", vocabulary=str(folder / name))
    library = tokenizers.Tokenizer.from_file(str(folder / name))
    library.no_truncation()
    library.no_padding()
    expected = library.encode(TEXT, add_special_tokens=False)
    store = open_text(tmp_path / "text.zarr")
    codes, _ = store.read(range(len(store)))
    assert codes.tolist() == expected.ids
    assert [store.vocabulary[code] for code in codes] == expected.tokens
    assert len(store.vocabulary) == library.get_vocab_size()


def test_a_store_gives_its_tokenizer_to_later_imports(folder: Path, tmp_path: Path):
    (tmp_path / "more.txt").write_text("over the brown dog")
    import_records("text", tmp_path / "more.txt", tmp_path / "more.zarr", vocabulary=str(folder / "train_data.zarr"))
    store, tokenizer = open_text(tmp_path / "more.zarr"), read_tokenizer(folder / "tokenizer.json")
    assert tokenizer is not None
    assert store.read(range(len(store)))[0].tolist() == tokenizer.encode("over the brown dog")
    assert store.vocabulary == open_text(folder / "train_data.zarr").vocabulary


def test_a_job_names_a_text_and_its_tokenizer(folder: Path, tmp_path: Path):
    (tmp_path / "input.txt").write_text(TEXT)
    store = open_text(tmp_path / "input.txt", folder / "tokenizer.json")
    assert len(store) == len(Tokenizer((folder / "tokenizer.json").read_text(), "it").encode(TEXT))
    refused(lambda: open_text(store.location, folder / "wordpiece.json"), "was imported with another vocabulary than")


def small(folder: Path, codes: int, **fields: object):
    sizes = {"blocks": 1, "width": 32, "heads": 2, "steps": 16, "batchsize": 8, "learning_rate": 0.02}
    never = {"disp_freq": 0, "test_freq": 0, "checkpoint_freq": 0, "train_steps": 30}
    return models.gpt(codes, str(folder), **sizes, **never, **fields)


def test_a_net_of_tokens_writes_text(folder: Path):
    job = small(folder, 300)
    result = dsinga.train(job, workers=1, progress=False)
    text = dsinga.generate(job, result.params, "The quick brown", 12, temperature=0)
    assert text.startswith(" fox – naïve")


def test_mistakes_are_named_with_their_remedies(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"'data' has 300 different codes, but vocab_size is 128; make it 300"):
        dsinga.train(small(folder, 128), workers=1, progress=False)
    (tmp_path / "input").write_bytes(b"one\ntwo\xff")
    with pytest.raises(UserError, match=r"input:2: not UTF-8 text"):
        import_records("text", tmp_path / "input", tmp_path / "x.zarr", vocabulary=str(folder / "tokenizer.json"))
    with pytest.raises(UserError, match="leave words and skip_unseen out"):
        import_records(
            "text", tmp_path / "input", tmp_path / "x.zarr", vocabulary=str(folder / "tokenizer.json"), words=True
        )


def test_without_the_library_one_sentence_says_what_to_install(folder: Path):
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from dsinga.data import import_records\n"
        f"folder = {str(folder)!r}\n"
        "import_records('text', folder + '/input.txt', 'x.zarr', vocabulary=folder + '/tokenizer.json')"
    )
    done = python("-c", code, fails=True)
    message = done.stderr.splitlines()[-1]
    assert message.endswith("tokenizer.json needs tokenizers to be read: pip install 'dsinga[tokenizers]'")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is no tokenizer of Hugging Face's tokenizers"),
        ('["a", "b"]', "is no tokenizer of Hugging Face's tokenizers"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_other_files_are_refused(content: str | bytes, message: str, tmp_path: Path):
    (tmp_path / "other.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(lambda: read_tokenizer(tmp_path / "other.json"), message)
    refused(lambda: read_tokenizer(tmp_path / "missing.json"), r"missing\.json cannot be read: No such file")
