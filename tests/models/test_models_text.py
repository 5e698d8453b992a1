"""The nets of reviews and of ratings: predictions, and words and films that are refused."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.base.errors import UserError
from dsinga.data import import_records, open_store, write_store
from dsinga.job import Job, loads, to_text
from notebooks.book.sample_ratings import write_ratings
from notebooks.book.sample_reviews import write_reviews
from tests.support.refusals import refused

STEPS = {"train_steps": 4, "test_freq": 0, "disp_freq": 1}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder / "raw", each=40)
    import_records("sentences", folder / "raw", folder / "stores")
    return folder / "stores"


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ratings")
    write_ratings(folder / "raw", users=12, films=20, ratings=120)
    import_records("movielens", folder / "raw", folder / "stores")
    return folder / "stores"


def job_of(name: str, reviews: Path, ratings: Path) -> Job:
    if name.startswith("sentiment"):
        words = len(open_store(reviews / "train_data.zarr").vocabulary)
        small = {"filters": 6} if name.endswith("convolution") else {"hidden": 5}
        return getattr(models, name)(words, str(reviews), embedding=6, batchsize=12, **small, **STEPS)
    words = len(open_store(ratings / "train" / "titles.zarr").vocabulary)
    return models.recommender(12, 20, words, str(ratings), similarity=name, width=8, batchsize=16, **STEPS)


def test_a_review_is_predicted_without_labels_and_whatever_the_padding(reviews: Path):
    job = job_of("sentiment_convolution", reviews, reviews)
    result = dsinga.train(job, workers=1, progress=False)
    words, _ = open_store(reviews / "test_data.zarr").read(range(8))
    longer = np.concatenate([words, np.full((8, 9), -1, np.int32)], axis=1)
    first, second = (dsinga.predict(job, result.params, "loss", data=codes) for codes in (words, longer))
    assert first.shape == (8, 2)
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_mistakes_are_named_with_their_remedies(reviews: Path, ratings: Path, tmp_path: Path) -> None:
    job = job_of("sentiment_lstm", reviews, reviews)
    words = np.array([[3, 4, 5], [-1, -1, -1]], np.int32)
    params = dsinga.train(job, workers=1, progress=False).params
    refused(lambda: dsinga.predict(job, params, "scores", data=words), "row 1 of the", "an empty sequence")
    job = job_of("cosine", ratings, ratings)
    films = np.full(96, 20, np.int32)
    write_store(tmp_path / "films.zarr", [(films, None)])
    path = "neuralnet.layer[films,kTrain].store_conf.path"
    with pytest.raises(UserError, match="'films'.*users or films"):
        dsinga.train(loads(to_text(job), overrides=(f"{path}={tmp_path / 'films.zarr'}",)), workers=1, progress=False)
