"""The nets of reviews and of ratings: predictions, and words and films that are refused."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.base.errors import UserError
from dsinga.data import import_records, open_store, write_store
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, loads, to_text
from dsinga.models import word_ngram
from dsinga.models.rnnlm import frequency_classes
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


def sentiment(name: str, reviews: Path, **size: int) -> Job:
    words = len(open_store(reviews / "train_data.zarr").vocabulary)
    return getattr(models, f"sentiment_{name}")(words, str(reviews), embedding=6, batchsize=12, **size, **STEPS)


def test_a_review_is_predicted_without_labels_and_whatever_the_padding(reviews: Path):
    job = sentiment("convolution", reviews, filters=6)
    result = dsinga.train(job, workers=1, progress=False)
    words, _ = open_store(reviews / "test_data.zarr").read(range(8))
    longer = np.concatenate([words, np.full((8, 9), -1, np.int32)], axis=1)
    first, second = (dsinga.predict(job, result.params, "loss", data=codes) for codes in (words, longer))
    assert first.shape == (8, 2)
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_mistakes_are_named_with_their_remedies(reviews: Path, ratings: Path, tmp_path: Path) -> None:
    job = sentiment("lstm", reviews, hidden=5)
    codes = np.array([[3, 4, 5], [-1, -1, -1]], np.int32)
    params = dsinga.train(job, workers=1, progress=False).params
    refused(lambda: dsinga.predict(job, params, "scores", data=codes), "row 1 of the", "an empty sequence")
    words = len(open_store(ratings / "train" / "titles.zarr").vocabulary)
    job = models.recommender(12, 20, words, str(ratings), similarity="cosine", width=8, batchsize=16, **STEPS)
    films = np.full(96, 20, np.int32)
    write_store(tmp_path / "films.zarr", [(films, None)])
    path = "neuralnet.layer[films,kTrain].store_conf.path"
    with pytest.raises(UserError, match="'films'.*users or films"):
        dsinga.train(loads(to_text(job), overrides=(f"{path}={tmp_path / 'films.zarr'}",)), workers=1, progress=False)


# Nets of word vectors: the losses of PyTorch for the same params and batches.
WORDS, ROWS, NGRAM_STEPS = 12, 20, 15
RNG = np.random.default_rng(0)


def test_the_ngram_net_has_the_losses_of_pytorch():
    torch = pytest.importorskip("torch")
    x, y = RNG.integers(WORDS, size=(NGRAM_STEPS, ROWS, 3)), RNG.integers(WORDS, size=(NGRAM_STEPS, ROWS))
    job = word_ngram(WORDS, context=3, embedding=6, hidden=8, batchsize=ROWS, train_steps=NGRAM_STEPS)
    job = job.replace(updater={"type": "kSGD", "learning_rate": {"type": "kFixed", "base_lr": 0.5}})
    net = LocalNet(job, x[0], y[0])
    ours, updater = net.initial_params(), net.updater()
    params = {name: torch.tensor(value, requires_grad=True) for name, value in ours.items()}
    optimizer, losses, expected = torch.optim.SGD(params.values(), lr=0.5), [], []
    for step in range(NGRAM_STEPS):
        result = net.backward(ours, x[step], y[step], step=step)
        losses.append(result.metrics["loss"])
        updater.step(ours, result.gradients)
        vectors = params["vectors_weight"][torch.tensor(x[step])].reshape(ROWS, -1)
        hidden = torch.tanh(torch.nn.functional.linear(vectors, params["hidden_weight"], params["hidden_bias"]))
        scores = torch.nn.functional.linear(hidden, params["scores_weight"], params["scores_bias"])
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y[step]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert expected[-1] != pytest.approx(expected[0], rel=1e-3)


COUNTS = [50, 20, 10, 5, 5, 4, 3, 2, 1]


def test_classes_of_words_have_about_equal_shares_of_the_text():
    assert frequency_classes(COUNTS, 1) == [0]
    assert frequency_classes(COUNTS, 2) == [0, 2]
    assert frequency_classes([1] * 9, 3) == [0, 4, 7]
    assert frequency_classes([98, 1, 1], 3) == [0, 1, 2]
