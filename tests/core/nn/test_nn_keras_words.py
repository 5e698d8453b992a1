"""Words of Keras that compute something, against numpy, against other words, and where installed against Keras."""

import copy
from pathlib import Path

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.nn.words.normalisation import BLOCK
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X, T = RNG.normal(size=(64, 6)).astype(np.float32), RNG.normal(size=(64, 3)).astype(np.float32)
STEPS = RNG.normal(size=(4, 9, 3)).astype(np.float32)


def net() -> nn.Sequential:
    made = nn.Sequential([nn.Input((6,)), nn.Dense(3, name="last")])
    made.compile(nn.SGD(0.1, momentum=0.5), "mse")
    return made


def test_without_shuffling_records_are_read_in_the_order_given():
    fitted, stepped = net(), net()
    fitted.fit(X, T, epochs=2, batch_size=16, shuffle=False, progress=False)
    for start in [*range(0, 64, 16)] * 2:
        stepped.train_on_batch(X[start : start + 16], T[start : start + 16])
    assert_same(fitted.params, stepped.params)
    grouped = nn.Sequential([nn.Input((6,), group_by_length=5), nn.Embedding(9, 2), nn.LSTM(2), nn.Dense(3)])
    grouped.compile("sgd", "mse")
    with pytest.raises(UserError, match="group_by_length sorts shuffled records; leave it out"):
        grouped.fit(np.ones((64, 6), int), T, shuffle=False, progress=False)


@pytest.mark.parametrize(("kernel", "strides", "dilation"), [(3, 1, 1), (2, 1, 3), (4, 2, 1)])
def test_a_causal_convolution_is_that_of_padded_steps(kernel: int, strides: int, dilation: int):
    settings = {"strides": strides, "dilation_rate": dilation}
    causal = nn.Sequential([nn.Input((9, 3)), nn.Conv1D(5, kernel, padding="causal", **settings)])
    before = (kernel - 1) * dilation
    plain = nn.Sequential([nn.Input((9 + before, 3)), nn.Conv1D(5, kernel, **settings)])
    plain.set_weights(causal.get_weights())
    padded = np.pad(STEPS, ((0, 0), (before, 0), (0, 0)))
    np.testing.assert_allclose(causal.predict(STEPS), plain.predict(padded), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.SimpleRNN], ids=lambda cell: cell.__name__)
def test_masked_steps_are_left_out_and_dropout_acts_in_training_alone(cell, tmp_path: Path):
    x = STEPS.copy()
    x[0, 6:], x[1, 2], x[2, :3] = 0, 0, 0
    masked = nn.Sequential([nn.Input((9, 3)), nn.Masking(0.0), cell(4, dropout=0.3), nn.Dense(2)])
    for row in x:
        kept = row[(row != 0).any(axis=-1)]
        cut = nn.Sequential([nn.Input(kept.shape), cell(4), nn.Dense(2)])
        cut.set_weights(masked.get_weights())
        np.testing.assert_allclose(masked.predict(row[None]), cut.predict(kept[None]), rtol=1e-5, atol=1e-6)
    masked.compile("sgd", "mse")
    masked.fit(x, np.ones((4, 2), np.float32), progress=False)
    masked.save(tmp_path)
    np.testing.assert_array_equal(nn.load_model(tmp_path).predict(x), masked.predict(x))


def test_a_gradient_goes_back_to_the_places_of_masked_steps():
    x = STEPS.copy()
    x[1, 2], x[2, :3] = 0, 0
    trained = []
    for layers in ([nn.Masking()], []):  # a mean over steps that are 0 counts them, so that the order alone differs
        first = nn.Dense(3, use_bias=False)
        made = nn.Sequential([nn.Input((9, 3)), first, *layers, nn.GlobalMaxPooling1D(), nn.Dense(2)])
        made.compile(nn.SGD(0.1), "mse")
        weights = np.arange(9.0).reshape(3, 3), np.ones((2, 3)), np.zeros(2)
        made.set_weights(weights)
        made.train_on_batch(abs(x), np.ones((4, 2), np.float32))
        trained.append(made.get_weights())
    for masked, plain in zip(*trained, strict=True):
        np.testing.assert_allclose(masked, plain, rtol=1e-6)


@pytest.mark.parametrize(("shape", "axis"), [((20, 4), -1), ((20, 5, 3), -1), ((20, 4), None), ((20, 6, 6, 3), -1)])
def test_normalization_adapts_to_records(shape: tuple[int, ...], axis: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dsinga.nn.words.normalisation.BLOCK", 7)
    assert BLOCK > 7
    x = (3 * RNG.normal(size=shape) + 7).astype(np.float32)
    others = tuple(range(x.ndim - (axis is not None)))
    expected = (x - x.mean(others, dtype=np.float64)) / x.std(others, dtype=np.float64)
    layer = nn.Normalization(axis=axis)
    layer.adapt(x)
    i = nn.Input(shape[1:])
    for source in (i, i * 1.0):
        made = nn.Model(i, layer(source))
        np.testing.assert_allclose(made.predict(x), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(copy.deepcopy(made).predict(x), made.predict(x))
    made = nn.Sequential([nn.Input(shape[1:]), nn.Normalization([7.0], [9.0]) if axis is None else layer])
    before = made.predict(x) if len(shape) == 2 else None
    layer.adapt(2 * x)
    assert before is None or axis is None or np.allclose(made.predict(2 * x), before, atol=1e-5)


def test_a_number_that_never_changes_becomes_zero():
    x = X.copy()
    x[:, 1] = 5
    layer = nn.Normalization()
    layer.adapt(x)
    assert (nn.Sequential([nn.Input((6,)), layer]).predict(x)[:, 1] == 0).all()


def test_a_rescaling_is_anywhere():
    i = nn.Input((6,))
    made = nn.Model(i, nn.Rescaling(2.0, 1.0)(nn.Rescaling(3.0)(i * 1.0)))
    np.testing.assert_allclose(made.predict(X), 6 * X + 1, rtol=1e-5)


def test_weights_are_variables_of_the_model():
    made = net()
    weight, bias = made.weights
    assert [weight.name, weight.path, weight.shape, weight.dtype] == ["last_weight", "last_weight", (3, 6), "float32"]
    weight.assign(np.ones((3, 6)))
    assert np.asarray(weight).sum() == made.get_weights()[0].sum() == 18
    assert [each.name for each in made.get_layer("last").weights] == ["last_weight", "last_bias"]
    assert made.layers[0].count_params() == made.count_params() == 21
    made.layers[0].trainable = False
    assert not made.trainable_weights
    assert len(made.non_trainable_weights) == 2
    refused(lambda: bias.assign(np.ones(4)), "'last_bias'", r"\(3,\), not \(4")


def test_models_within_are_found_and_copied():
    base = nn.Sequential([nn.Input((6,)), nn.Dense(4, name="hidden")], name="base")
    base.trainable = False
    made = nn.Sequential([nn.Input((6,)), base, nn.Dense(3)])
    assert made.get_layer("base") is base
    copied = nn.clone_model(made)
    assert copied.get_layer("base").get_layer("hidden") is not base.layers[0]
    assert [each.trainable for each in copied.weights] == [False, False, True, True]
    copied.set_weights([2 * each for each in made.get_weights()])
    assert made.get_weights()[0].sum() * 2 == pytest.approx(copied.get_weights()[0].sum())
    i = nn.Input((6,))
    left, right = nn.Slice(2)(i)
    graph = nn.Model(i, nn.average([nn.Dense(2)(left), nn.Dense(2)(right), nn.maximum([left, right])[:, :2]]))
    again = nn.clone_model(graph)
    again.set_weights(graph.get_weights())
    np.testing.assert_array_equal(again.predict(X), graph.predict(X))


def test_a_copy_knows_the_shapes_of_records_of_its_model():
    made = nn.Sequential([nn.LSTM(3), nn.Dense(2)])
    expected = made.predict(X[:, None])
    copied = nn.clone_model(made)
    copied.set_weights(made.get_weights())
    np.testing.assert_array_equal(copied.predict(X[:, None]), expected)


def test_functions_of_several_features_are_numpys():
    i = nn.Input((6,))
    a, b = i * 1.0, i * 2.0 - 1.0
    functions = [nn.add, nn.subtract, nn.multiply, nn.average, nn.maximum, nn.minimum]
    outputs = nn.Model(i, [function([a, b]) for function in functions]).predict(X)
    y = 2 * X - 1
    expected = [X + y, X - y, X * y, (X + y) / 2, np.maximum(X, y), np.minimum(X, y)]
    for output, numbers in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, numbers, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(nn.to_categorical([[0], [2]], 4), np.eye(4)[[0, 2]])


@pytest.mark.parametrize("loss", ["mse", nn.MeanSquaredError(masked=True)], ids=["weights", "masked"])
def test_missing_targets_of_several_are_left_out(loss):
    holes = T.copy()
    holes[3, 1] = holes[5] = np.nan
    seen = np.isfinite(holes)
    weights = {} if loss != "mse" else {"sample_weight": seen}

    def trained(targets, loss, **weights):
        made = net()
        made.compile(nn.SGD(0.1), loss)
        fitted = {name: each[:48] for name, each in weights.items()} | {"shuffle": False, "progress": False}
        made.fit(X[:48], targets[:48], **fitted)
        held = (X[48:], targets[48:], *(each[48:] for each in weights.values()))
        made.fit(X[:48], targets[:48], validation_data=held, **fitted)
        made.train_on_batch(X, targets, **weights)
        return made, made.evaluate(X, targets, **weights)["loss"]

    made, figure = trained(holes, loss, **weights)
    expected, _ = trained(np.where(seen, holes, 7), "mse", sample_weight=seen.astype(float))
    assert_same(made.params, expected.params)
    errors = np.where(seen, made.predict(X) - holes, 0)
    assert figure == pytest.approx(np.square(errors).mean(), rel=1e-5)
    refused(lambda: net().fit(X, holes, progress=False), "NaN in record 3, column 1", "sample_weight=")
