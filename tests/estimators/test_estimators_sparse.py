"""Estimators on sparse matrices, whose records become dense block by block where all of them would be large."""

from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.protocol import deserialize, serialize
from scipy import sparse

from dsinga.estimators import Classifier, Regressor, Transformer, sparse_records
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same

X = sparse.random(700, 30, density=0.1, random_state=0, format="coo")
Y = np.asarray(X.sum(axis=1)).ravel() > 1.5


@pytest.fixture
def always_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_records, "SMALL_BYTES", 0)


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        (Classifier(random_state=0, epochs=2, early_stopping=True), "predict_proba"),
        (Regressor(random_state=0, epochs=2), "predict"),
        (Transformer(random_state=0, epochs=2), "transform"),
        (Transformer(method="rbm", random_state=0, epochs=2), "transform"),
    ],
    ids=str,
)
def test_blocks_of_a_sparse_matrix_give_the_bits_of_a_dense_one(
    estimator: Any, method: str, always_large: None
) -> None:
    expected = estimator.fit(X.toarray(), Y)
    params, results = expected.params_, getattr(expected, method)(X.toarray())
    assert_same(estimator.fit(X, Y).params_, params)
    np.testing.assert_array_equal(getattr(estimator, method)(X), results)
    np.testing.assert_array_equal(getattr(estimator, method)(X.tocsc()), results)


def test_a_sparse_matrix_is_sent_to_a_cluster(threads: Client, always_large: None) -> None:
    weights = np.random.default_rng(0).random(700)
    here = Classifier(random_state=0, epochs=2).fit(X, Y, sample_weight=weights, validation_data=(X, Y))
    there = Classifier(random_state=0, epochs=2).fit(X, Y, sample_weight=weights, client=threads)
    assert_close(there.params_, here.params_, 1e-5)
    bad = X.tocsr().copy()
    bad.data[5] = np.nan
    refused(lambda: here.fit(bad, Y), "Input X contains NaN", error=ValueError)


def test_a_column_is_sent_to_other_processes() -> None:
    column = sparse_records.SparseColumn(sparse_records.SparseRecords(X.tocsr()), "X")
    np.testing.assert_array_equal(deserialize(*serialize(column)).load(10, 40), column.load(10, 40))
