"""Sequences of several lengths: each is computed as it would be alone."""

from pathlib import Path

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
ENDS = np.array([6, 2, 4, 5])
RAGGED = [RNG.integers(1, 20, end).tolist() for end in ENDS]
LABELS = RNG.integers(0, 3, len(ENDS))


def filled(code: int) -> np.ndarray:
    return np.array([row + [code] * (6 - len(row)) for row in RAGGED])


def attended(x):
    """The mean over the steps of an attention of sequences to themselves."""
    return nn.GlobalAveragePooling1D()(nn.MultiHeadAttention(2, 3)(x, x))


LAYERS = {
    "LSTM": [nn.LSTM(5)],
    "stack": [nn.SimpleRNN(4, return_sequences=True), nn.Dropout(0.1), nn.Bidirectional(nn.GRU(3))],
    "convolution": [nn.Conv1D(5, 2, activation="relu"), nn.Dense(4), nn.GlobalMaxPooling1D()],
    "windows": [nn.MaxPooling1D(2, 1), nn.LayerNormalization(), nn.GlobalAveragePooling1D()],
    "attention": [nn.Dense(4, activation="tanh"), attended],
    "operators": [lambda x: x * 2.0 + x, nn.GRU(4)],
}


def model(layers, *, mask_zero: bool = False) -> nn.Model:
    x = codes = nn.Input((None,))
    for layer in [nn.Embedding(20, 4, mask_zero=mask_zero), *layers]:
        x = layer(x)
    made = nn.Model(codes, nn.Dense(3, activation="softmax")(x))
    made.compile("sgd", "sparse_categorical_crossentropy")
    return made


@pytest.mark.parametrize(("code", "layers"), [*((-1, layers) for layers in LAYERS), (0, "stack"), (0, "convolution")])
def test_a_sequence_among_longer_ones_is_computed_as_alone(code: int, layers: str):
    made = model(LAYERS[layers], mask_zero=code == 0)
    codes = filled(code)
    made.fit(codes, LABELS, batch_size=2, progress=False)
    expected = np.concatenate([made.predict(np.array([row])) for row in RAGGED])
    np.testing.assert_allclose(made.predict(codes), expected, rtol=1e-5, atol=1e-7)


def test_lists_of_several_lengths_are_the_array_that_is_filled(tmp_path: Path):
    by_list, by_array = (model([nn.LSTM(5)]) for _ in range(2))
    by_list.fit(RAGGED, LABELS, epochs=2, validation_split=0.25, progress=False)
    by_array.fit(filled(-1), LABELS, epochs=2, validation_split=0.25, progress=False)
    by_list.save(tmp_path)
    objects = np.array(RAGGED, object)
    for made, x in ((by_list, RAGGED), (by_list, objects), (nn.load_model(tmp_path), RAGGED)):
        np.testing.assert_array_equal(made.predict(x), by_array.predict(filled(-1)))
    assert by_list.evaluate(RAGGED, LABELS) == by_array.evaluate(filled(-1), LABELS)
    assert by_list.train_on_batch(RAGGED, LABELS) == by_array.train_on_batch(filled(-1), LABELS)


@pytest.mark.parametrize("layers", ["LSTM", "stack", "attention"])
def test_zeros_are_left_out_wherever_they_are(layers: str):
    made = model(LAYERS[layers], mask_zero=True)
    made.fit(filled(0), LABELS, progress=False)
    first = np.array([[0] * (6 - len(row)) + row for row in RAGGED])
    among = np.insert(filled(0), [1, 3], 0, axis=1)
    for codes in (first, among):
        np.testing.assert_allclose(made.predict(codes), made.predict(filled(0)), rtol=1e-5, atol=1e-7)


def test_mistakes_are_named_with_their_remedies() -> None:
    x = nn.Input((3,))
    made = nn.Model(x, nn.Dense(3, activation="softmax")(nn.Embedding(20, 4, mask_zero=True)(x)))
    made.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(UserError, match="row [01] that 'data' gives has 0 before its last step: 1, 0, 2; 0 is for the"):
        made.fit(np.array([[1, 2, 0], [1, 0, 2]]), np.zeros((2, 3), int), progress=False)
    made = model([nn.LSTM(5)], mask_zero=True)
    with pytest.raises(UserError, match="row 0 of the batch is an empty sequence, 0 throughout"):
        made.fit(np.zeros((2, 3), int), LABELS[:2], progress=False)
    refused(lambda: made.predict(np.zeros((2, 3, 4))), "'data'", r"takes \(None")
    fixed = nn.Sequential([nn.Input((6,)), nn.Embedding(20, 4)])
    refused(lambda: fixed.predict(RAGGED), "'data'", r"Input\(\(None,\)\)")
    refused(lambda: fixed.predict(["a b", "c"]), "'data'", "begin with nn")
    with pytest.raises(UserError, match="row [01] of the batch is an empty sequence"):
        model([nn.LSTM(5)]).fit([[1, 2], []], [0, 1], progress=False)
