"""Subclasses of Model that define ``call``, as in Keras."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from dsinga import nn
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype(np.float32)
Y = np.arange(60) % 3


class Residual(nn.Model):
    """A net whose layers are its attributes."""

    def __init__(self, units: int, **more: Any):
        super().__init__(**more)
        self.first, self.second = nn.Dense(units, "relu"), nn.Dense(units)
        self.join, self.last = nn.Add(), nn.Dense(3)

    def call(self, x: Any, training: Any = None) -> Any:
        h = self.first(x)
        return self.last(self.join([h, self.second(h)]))


class Pair(nn.Model):
    """A net of two inputs and two outputs."""

    def call(self, inputs: Any) -> Any:
        joined = nn.Concatenate()(inputs)
        return [nn.Dense(2, name="left")(joined), nn.Dense(1, name="right")(joined)]


def same_net() -> nn.Model:
    x = nn.Input()
    h = nn.Dense(8, "relu")(x)
    return nn.Model(x, nn.Dense(3)(nn.Add()([h, nn.Dense(8)(h)])))


def test_a_subclass_is_the_model_of_what_call_returns(tmp_path: Path):
    model, same = Residual(8), same_net()
    for each in (model, same):
        each.compile(nn.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
        each.fit(X, Y, epochs=2, progress=False)
    assert_same(model.params, same.params)
    assert [layer.kind for layer in model.layers] == ["Dense", "Dense", "Add", "Dense"]
    np.testing.assert_array_equal(model.predict(X), same.predict(X))
    model.save(tmp_path)
    np.testing.assert_array_equal(nn.load_model(tmp_path).predict(X), model.predict(X))
    assert_same(pickle.loads(pickle.dumps(model)).params, model.params)


def test_its_inputs_may_have_shapes_and_be_several():
    assert Residual(4, inputs=nn.Input(6)).params["dense_weight"].shape == (4, 6)
    inputs = [nn.Input(2, name="a"), nn.Input(3, name="b")]
    left, right = Pair(inputs).predict([X[:, :2], X[:, 2:5]])
    assert (left.shape, right.shape) == ((60, 2), (60, 1))
