"""The made reviews and ratings have the form of the published files, and small nets learn from them."""

from pathlib import Path

import pytest

import dsinga
from dsinga import models
from dsinga.data import import_records, open_store
from notebooks.book.sample_entities import write_entities
from notebooks.book.sample_ratings import write_ratings
from notebooks.book.sample_reviews import write_reviews
from notebooks.book.sample_words import FAMILIES, write_text


def test_the_same_seed_gives_the_same_files(tmp_path: Path):
    def write_words(folder: Path, seed: int) -> None:
        write_text(folder / "input.txt", 400, seed)

    writers = {write_reviews: "rt-polarity.neg", write_ratings: "u.data", write_words: "input.txt"}
    for write, file in writers.items():
        for name, seed in (("one", 1), ("same", 1), ("other", 2)):
            write(tmp_path / name, seed=seed)
        one, same, other = ((tmp_path / name / file).read_bytes() for name in ("one", "same", "other"))
        assert one == same != other
    assert {word for family in FAMILIES.values() for word in family} <= {*one.decode().split()}


@pytest.mark.ci
def test_a_convolution_learns_the_made_reviews(tmp_path: Path):
    write_reviews(tmp_path / "raw", each=300)
    import_records("sentences", tmp_path / "raw", tmp_path / "stores", encoding="latin-1")
    words = len(open_store(tmp_path / "stores" / "train_data.zarr").vocabulary)
    job = models.sentiment_convolution(
        words, str(tmp_path / "stores"), embedding=16, filters=16, epochs=8, test_freq=80, disp_freq=0
    )
    result = dsinga.train(job, workers=1, progress=False)
    assert result.history.phase("test")[-1, "accuracy"] > 0.9  # by single words about 2/3


@pytest.mark.ci
def test_a_recommender_learns_the_made_ratings(tmp_path: Path):
    write_ratings(tmp_path / "raw")
    import_records("movielens", tmp_path / "raw", tmp_path / "stores")
    words = len(open_store(tmp_path / "stores" / "train" / "titles.zarr").vocabulary)
    fields = {"width": 16, "batchsize": 32, "train_steps": 400, "test_freq": 400, "disp_freq": 0}
    job = models.recommender(60, 80, words, str(tmp_path / "stores"), **fields)
    result = dsinga.train(job, workers=1, progress=False)
    first, last = (row["rmse"] for row in result.history.phase("test"))
    assert last < 0.85 < 1.1 < first  # the standard deviation of the ratings is above 1.1


def test_half_of_the_names_of_the_second_file_are_new(tmp_path: Path):
    write_entities(tmp_path)
    train, val = ((tmp_path / name).read_text() for name in ("wnut17train.conll", "emerging.dev.conll"))
    assert train.count("\n\n") == 320
    assert val.count("\n\n") == 100
    names = [{line.split("\t")[0] for line in text.splitlines() if "\tB-person" in line} for text in (train, val)]
    assert len(names[0]) == 4
    assert names[0] < names[1]
    assert len(names[1]) == 8
