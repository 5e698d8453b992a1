"""Every model of ``dsinga.models``, exported to ONNX, gives in ONNX Runtime what ``predict`` gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.job import Job, loads, to_text
from tests.addons.onnx.test_onnx_export import ROWS, check, compare, numbers
from tests.support.onnx_nets import session_of

onnx = pytest.importorskip("onnx")


def codes(count: int, *shape: int) -> np.ndarray:
    """Return ROWS random codes below ``count``; of shape (T,) such that sentences end after any number of steps."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, count, (ROWS, *shape))
    if not shape:
        return drawn
    lengths = rng.permutation(np.arange(ROWS) % shape[0] + 1)
    lengths[0] = shape[0]
    return np.where(np.arange(shape[0]) < lengths[:, None], drawn, -1)


def texts(count: int, steps: int) -> np.ndarray:
    """Return ROWS stretches of a text."""
    return np.random.default_rng(0).integers(0, count, (ROWS, steps))


ROUND = "edge", "periodic"
SENTENCES = {"source": codes(12, 7), "target": codes(14, 5)}
FIELDS = {"input_statistics": {"mean": [1.0, 2.0], "std": [2.0, 3.0]}, "output_statistics": {"mean": [5.0], "std": [2]}}
Make = Callable[[], Any]
MODELS: dict[str, tuple[Make, Any]] = {
    "alexnet": (lambda: models.alexnet(5, size=80, cropsize=67), numbers(3, 80, 80)),
    "autoencoder": (lambda: models.autoencoder((16, 8, 4), pretrained=""), numbers(16)),
    "char_rnn": (lambda: models.char_rnn(11, hidden=8, steps=6, layers=2), texts(11, 7)),
    "char_rnn of LSTMs": (lambda: models.char_rnn(11, hidden=8, steps=6, cell="kLSTM"), texts(11, 7)),
    "convlstm": (lambda: models.convlstm((4, 6, 5), 2, 2, 2, filters=(3, 2)), numbers(4, 6, 5)),
    "convnet": (models.convnet, numbers(3, 32, 32)),
    "deepesd": (lambda: models.deepesd((2, 6, 5), 7, filters=(3, 2, 1)), numbers(2, 6, 5)),
    "field_resnet": (
        lambda: models.field_resnet((2, 8, 8), width=4, blocks=1, dropout=0.1, **FIELDS),
        numbers(2, 8, 8),
    ),
    "gpt": (lambda: models.gpt(13, blocks=2, width=16, heads=2, steps=6), texts(13, 6)),
    "gru_translator": (lambda: models.gru_translator(12, 14, embedding=6, hidden=8), SENTENCES),
    "lenet": (lambda: models.lenet(8, (4, 6)), numbers(1, 8, 8)),
    "line": (lambda: models.line(4), numbers(4)),
    "mdnn": (lambda: models.mdnn((16,), (8,), code=4), {"image": numbers(9), "text": numbers(5)}),
    "mlp": (lambda: models.mlp((8, 6), 12), numbers(12)),
    "recommender": (
        lambda: models.recommender(9, 11, 20, width=6),
        {"users": codes(9), "films": codes(11), "titles": codes(20, 5), "genres": numbers(4)},
    ),
    "resnet": (lambda: models.resnet(8, size=16), numbers(3, 16, 16)),
    "rnnlm": (lambda: models.rnnlm([9, 8, 7, 5, 4, 3, 2], classes=3, hidden=5, steps=6), texts(7, 7)),
    "sentiment_convolution": (lambda: models.sentiment_convolution(20, embedding=6, filters=4), codes(20, 8)),
    "sentiment_lstm": (lambda: models.sentiment_lstm(20, embedding=6, hidden=4), codes(20, 8)),
    "skip_gram": (lambda: models.skip_gram([5, 4, 3, 2]), codes(4)),
    "softmax_regression": (lambda: models.softmax_regression((12,)), numbers(12)),
    "transformer": (lambda: models.transformer(12, 14, width=8, heads=2, hidden=12), SENTENCES),
    "unet": (lambda: models.unet((2, 8, 8), width=4, depth=2, padding=ROUND, normalisation="group"), numbers(2, 8, 8)),
    "vgg": (models.vgg, numbers(3, 32, 32)),
    "word_ngram": (lambda: models.word_ngram(9, context=3, embedding=4, hidden=5), texts(9, 3)),
}


def made(make: Make, x: Any, folder: Path) -> Any:
    """Return a model, with a mean image where its job names one."""
    model = make()
    if not isinstance(model, Job):
        return model
    text, mean = to_text(model), folder / "mean.npy"
    if "image_mean.zarr" in text:
        np.save(mean, np.mean(x, axis=0))
    return nn.from_job(loads(text.replace("image_mean.zarr", str(mean))))


BUSY = {"alexnet", "transformer"}  # half a second or more
# Of inputs, the second axis: a number of steps that may vary has a name.
STEPS = {
    "gpt": ["T"],
    "sentiment_convolution": ["T"],
    "transformer": ["T_source", "T_target"],
    "char_rnn": [7],  # whose job says the number
}


# The beginnings of names of params that come back as others: shared ones with names of their own, moments that records
# are normalised by, windows of steps, which become those of images of one row, and convolutions of a ConvLSTM.
OTHER = {
    "autoencoder": ("w", "b"), "field_resnet": ("normalised", "output_mean", "output_std"),
    "recommender": ("title_conv_weight",), "sentiment_convolution": ("conv3_weight", "conv4_weight", "conv5_weight"),
    "convlstm": ("encoder", "forecaster"),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.ci if name in BUSY else ()) for name in MODELS])
def test_a_file_computes_the_predictions_and_an_import_of_it_has_the_params(name, tmp_path):
    make, x = MODELS[name]
    model = made(make, x, tmp_path)
    runner, expected = check(model, x, tmp_path / "net.onnx"), model.predict(x)
    if name in STEPS:
        assert [each.shape[1] for each in runner.get_inputs()] == STEPS[name]
    net = onnx.load(tmp_path / "net.onnx").graph
    records = x if isinstance(x, dict) else {model.input_names()[0]: x}
    imported = nn.load_onnx(tmp_path / "net.onnx", *(records[each.name].shape[1:] for each in net.input))
    results = imported.predict({each.name: records[each.name] for each in net.input})
    for result, features in zip(flatten([results]), flatten([expected]), strict=True):
        np.testing.assert_allclose(result, features, rtol=1e-6, atol=1e-6)
    written = {each.name for each in net.initializer} & model.params.keys()
    for param in [param for param in written if not param.startswith(OTHER.get(name, ()))]:
        np.testing.assert_array_equal(imported.params[param], model.params[param])


def flatten(results: list[Any]) -> list[np.ndarray]:
    """Return the arrays of results, one or a list of which a model gives."""
    return [array for each in results for array in (each if isinstance(each, list) else [each])]


def test_all_models_are_here():
    assert {*models.__all__} - {name.split()[0] for name in MODELS} == {"bigru_crf", "rbm", "tabm", "realmlp"}


def test_the_scores_of_tags_take_lengths_from_the_words(tmp_path):
    model = nn.from_job(models.bigru_crf({"words": 20, "shapes": 5}, 4, hidden=6))
    x = {"words": codes(20, 7), "shapes": texts(5, 7)}
    model.record_shapes = {"words": (7,), "shapes": (7,)}
    model.export(tmp_path / "net.onnx")
    net, labels = model.shaped_net(), {"words": np.minimum(x["words"], 0)}
    expected = net.forward(model.params, x, labels, layers=["scores"], phase="test").outputs["scores"]
    compare(session_of(tmp_path / "net.onnx"), x, [expected])


def test_steps_of_images_come_back_as_layers_of_each_step(tmp_path):
    x = nn.Input((3, 2, 6, 5))
    h = nn.TimeDistributed(nn.Conv2D(4, 3, padding=(2, 1), activation="relu", name="conv"))(x)
    h = nn.TimeDistributed(nn.AveragePooling2D(2, padding="same"))(nn.TimeDistributed(nn.MaxPooling2D(2))(h))
    model, images = nn.Model(x, h), numbers(3, 2, 6, 5)
    model.export(tmp_path / "net.onnx")
    imported = nn.load_onnx(tmp_path / "net.onnx")
    np.testing.assert_allclose(imported.predict(images), model.predict(images), rtol=1e-5, atol=1e-6)
    assert all((imported.params[name] == param).all() for name, param in model.params.items())


@pytest.mark.parametrize("number", [1, 2])
def test_the_hidden_units_of_a_machine_are_its_output(number, tmp_path):
    job, x = models.rbm(number, (16, 8, 4)).replace(checkpoint_path=[]), np.abs(numbers(16))
    model = nn.from_job(job)
    expected = model.features(x, "RBMHid")
    model.export(tmp_path / "net.onnx")
    compare(session_of(tmp_path / "net.onnx"), {"data": x}, [expected])
