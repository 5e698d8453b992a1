"""Estimators that stop early: which records they hold out, when they end, and which params they keep."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone
from sklearn.model_selection import StratifiedGroupKFold, TimeSeriesSplit

import dsinga
from dsinga.estimators import Classifier, Regressor, Transformer, load
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.validation import split_records
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(700, 5))
Y = (X[:, 0] + RNG.normal(size=700) > 0).astype(int)
WEIGHTS = RNG.random(700)
STOPS: dict[str, Any] = {"random_state": 0, "early_stopping": True, "n_iter_no_change": 3}


def test_training_ends_after_the_best_epoch_and_keeps_its_params() -> None:
    classifier = Classifier(**STOPS, class_weight={1: 2.0}).fit(X, Y, sample_weight=WEIGHTS)
    losses = [row["val_loss"] for row in classifier.history_]
    assert classifier.best_epoch_ == np.argmin(losses) + 1 == classifier.n_iter_ - 3
    records = TrainingSet(X, Y, WEIGHTS * np.where(Y, 2.0, 1.0))
    (x, y, w), held_out = split_records(records, 0.1, classifier.job_.seed, by_class=True)
    fields = {"random_state": 0, "epochs": classifier.best_epoch_}
    until_best = Classifier(**fields).fit(x, y, sample_weight=w, validation_data=tuple(held_out))
    assert_same(classifier.params_, until_best.params_)
    assert until_best.history_[-1]["val_loss"] == min(losses)
    given = Classifier(**STOPS).fit(x, y, sample_weight=w, validation_data=tuple(held_out))
    assert_same(given.params_, classifier.params_)
    assert until_best.best_epoch_ is None


def test_the_default_net_stops_early_above_ten_thousand_records() -> None:
    x, net = RNG.normal(size=(10_001, 2)), dsinga.models.mlp([2], inputs=2, classes=2, brightest=1.0)
    y, fields = (x[:, 0] > 0).astype(int), {"epochs": 1, "batchsize": 2000}
    assert Classifier(**fields).fit(x, y).best_epoch_ == Regressor(**fields).fit(x, y).best_epoch_ == 1
    assert Classifier(net, **fields, early_stopping=True).fit(x, y).best_epoch_ == 1
    assert Classifier(**fields).fit(x[1:], y[1:]).best_epoch_ is None
    for estimator in (Classifier(net, **fields), Classifier(**fields, early_stopping=False), Transformer(**fields)):
        assert estimator.fit(x, y).best_epoch_ is None
    assert Classifier(**fields).partial_fit(x, y).best_epoch_ is None
    refused(lambda: Classifier(early_stopping=True).partial_fit(x, y), "partial_fit trains", "cannot stop early")


def test_each_class_gives_its_share_and_keeps_one_record_to_train_on() -> None:
    codes = np.repeat([0, 1, 2, 3], [200, 70, 1, 9])
    records = TrainingSet(np.arange(280)[:, None], codes, WEIGHTS[:280])
    trained, held_out = split_records(records, 0.3, 5, by_class=True)
    counts = np.bincount(held_out.y, minlength=4)
    assert abs(counts - 0.3 * np.bincount(codes)).max() < 1
    assert counts[2] == 0
    rows = np.concatenate([trained.x, held_out.x])[:, 0]
    assert sorted(rows) == [*range(280)]
    np.testing.assert_array_equal(np.concatenate([trained.weights, held_out.weights]), WEIGHTS[rows])
    assert set(split_records(records, 0.3, 6, by_class=True)[1].x[:, 0]) != set(held_out.x[:, 0])
    labels = records._replace(y=RNG.integers(0, 2, (280, 3)))
    np.testing.assert_array_equal(
        split_records(labels, 0.3, 5)[1].y, labels.y[split_records(labels, 0.3, 5)[1].x[:, 0]]
    )


def test_groups_stay_together_and_times_in_order() -> None:
    groups, records = RNG.integers(0, 20, 700), TrainingSet(np.arange(700)[:, None], Y)
    for splitter in (None, StratifiedGroupKFold(5)):
        trained, held_out = split_records(records, 0.2, 0, groups=groups, splitter=splitter)
        assert not set(groups[trained.x[:, 0]]) & set(groups[held_out.x[:, 0]])
        assert len(set(groups[held_out.x[:, 0]])) == 4
    trained, held_out = split_records(records, 0.1, 0, splitter=TimeSeriesSplit(9, gap=20))
    assert (len(trained.x), trained.x.max(), len(held_out.x), held_out.x.min()) == (610, 609, 70, 630)
    of_strings = Classifier(**STOPS, epochs=2).fit(X, Y, groups=groups.astype(str))
    assert_same(of_strings.params_, Classifier(**STOPS, epochs=2).fit(X, Y, groups=groups.astype("U9")).params_)


def test_a_second_fit_goes_on_with_the_same_records_held_out() -> None:
    once = Regressor(**{**STOPS, "batchsize": 210}, epochs=4, learning_rate=0.002).fit(X, X[:, 0])
    twice = clone(once).set_params(warm_start=True, epochs=2).fit(X, X[:, 0])
    assert twice.fit(X, X[:, 0]).history_ == once.history_
    assert twice.best_epoch_ == once.best_epoch_ == 4
    assert_same(twice.params_, once.params_)


def test_a_boltzmann_machine_stops_by_its_error_and_is_saved(tmp_path: Path) -> None:
    fitted = Transformer(method="rbm", **STOPS).fit(X)
    errors = [row["val_reconstruction_error"] for row in fitted.history_]
    assert fitted.best_epoch_ == np.argmin(errors) + 1 == len(errors) - 3
    fitted.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert loaded.best_epoch_ == fitted.best_epoch_
    assert loaded.get_params() == fitted.get_params()


@pytest.mark.parametrize(
    ("fields", "groups", "message"),
    [
        ({"early_stopping": "yes"}, None, "early_stopping is 'yes'; give True, False or 'auto'"),
        ({"validation_fraction": 50}, None, "validation_fraction is 50; give a number between 0 and 1"),
        ({"validation_fraction": 1.0}, None, "of 700 records 0 would be to train on and 700 for validation; give more"),
        ({"validation_split": 0.2}, None, "validation_split is 0.2; give a splitter of scikit-learn, such as"),
        ({"n_iter_no_change": 0}, None, "n_iter_no_change is 0; give a whole number of at least 1"),
        ({"tol": -1}, None, "tol is -1; give a number of at least 0"),
        ({}, np.zeros(5), "X has 700 records, but groups has 5; give both as many"),
        ({}, np.zeros(700), "of 700 records 0 would be to train on"),
        ({}, "patient", "groups is 'patient'; give the group of each record"),
        ({}, np.array(["a", None] * 350), "groups has missing or mixed names"),
    ],
)
def test_bad_arguments_are_refused(fields: dict[str, Any], groups: Any, message: str) -> None:
    refused(lambda: Regressor(**{**STOPS, **fields}).fit(X, X[:, 0], groups=groups), message)
    refused(lambda: Regressor(patience=5), "it is n_iter_no_change")


def test_each_chunk_of_a_dask_array_gives_its_share(threads: Client) -> None:
    records = da.arange(700, chunks=((5, 0, 95, 250, 350),))
    parts = split_records(TrainingSet(records[:, None], da.from_array(Y, chunks=300), None), 0.2, 3)
    for part, counts in zip(parts, ((4, 0, 76, 200, 280), (1, 0, 19, 50, 70)), strict=True):
        assert np.abs(np.subtract(part.x.chunks[0], counts)).max() <= 1
        np.testing.assert_array_equal(part.y.compute(), Y[part.x.compute()[:, 0]])
    assert sorted(da.concatenate([part.x[:, 0] for part in parts]).compute()) == [*range(700)]
    lazily = da.from_array(X, chunks=(200, 5)), da.from_array(Y, chunks=350)
    classifier = Classifier(**STOPS, epochs=3).fit(*lazily, sample_weight=da.from_array(WEIGHTS, chunks=100))
    assert classifier.best_epoch_ == np.argmin([row["val_loss"] for row in classifier.history_]) + 1
    groups = RNG.integers(0, 9, 700)
    for fields, options in (({}, {"groups": groups}), ({"validation_split": TimeSeriesSplit(9)}, {})):
        here = Classifier(**STOPS, **fields, epochs=1).fit(X, Y, **options)
        there = Classifier(**STOPS, **fields, epochs=1).fit(*lazily, **options)
        assert there.history_[-1] == pytest.approx(here.history_[-1], rel=1e-4)
