"""The learning rate of a model of nn, from its records."""

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.job import Job
from tests.support.refusals import refused

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def model():
    return nn.Sequential([nn.Dense(8, activation="relu"), nn.Dense(2)])


def test_a_rate_is_found_for_a_model():
    made = model()
    made.compile("adam", "sparse_categorical_crossentropy")
    search = dsinga.find_learning_rate(made, X, Y, steps=20, batch_size=8, progress=False)
    assert len(search.rates) == 20
    made.fit(X, Y, progress=False)


MISTAKES = {
    "without records": (lambda: dsinga.find_learning_rate(model()), r"\(model, x, y\)"),
    "before compile": (lambda: dsinga.find_learning_rate(model(), X, Y), "compile"),
    "of a job": (lambda: dsinga.find_learning_rate(Job(), X, Y), "data="),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_what_to_write(name):
    refused(*MISTAKES[name])
