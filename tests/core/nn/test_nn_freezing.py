"""Params that training does not move: of frozen layers and models; the order of weights."""

import pickle

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.checkpoint import read_params
from dsinga.commands.cli import main_group
from dsinga.data import write_store
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = (3 * RNG.normal(size=(60, 4)) + 1).astype(np.float32)
Y = RNG.integers(3, size=60)
WORDS = RNG.integers(7, size=(20, 5)).astype(np.uint8)


def dense() -> nn.Sequential:
    model = nn.Sequential([nn.Input(4), nn.Dense(8, activation="relu"), nn.Dense(3)])
    model.compile(nn.SGD(0.1, momentum=0.9, weight_decay=0.1), "sparse_categorical_crossentropy")
    return model


def moved(model, x=X, y=Y, **options) -> set[str]:
    """Return the names of the params that a fit moves."""
    before = {name: array.copy() for name, array in model.params.items()}
    model.fit(x, y, progress=False, **options)
    return {name for name, array in model.params.items() if not np.array_equal(array, before[name])}


def test_a_frozen_layer_and_a_frozen_model_keep_their_params():
    model = dense()
    model.fit(X, Y, progress=False)
    model.layers[0].trainable = False
    assert moved(model) == {"dense_1_weight", "dense_1_bias"}
    assert moved(model, workers=2) == {"dense_1_weight", "dense_1_bias"}
    again = pickle.loads(pickle.dumps(model))
    assert (again.layers[0].trainable, again.trainable) == (False, True)
    model.trainable = False
    assert not model.trainable
    assert moved(model) == set()
    model.get_layer("dense_1").trainable = True
    assert moved(model) == {"dense_1_weight", "dense_1_bias"}
    model.trainable = True
    assert moved(model) == set(model.params)


def test_a_static_param_and_a_frozen_normalisation_keep_their_values():
    frozen = [nn.Dense(3, trainable=False, name="kept"), nn.BatchNormalization(trainable=False, name="norm")]
    frozen += [nn.Layer("kBM", bm_conf={"momentum": 0.3}, trainable=False, name="type")]
    model = nn.Sequential([nn.Input(4), *frozen, nn.Dense(3, param=[nn.Param(static=True)], name="half")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    confs = {layer.name: layer for layer in model.job().neuralnet.layer}
    layers = {name: [param.static for param in conf.param] for name, conf in confs.items()}
    assert (layers["kept"], layers["norm"], layers["half"]) == ([True, True], [True, True], [True])
    assert confs["norm"].bm_conf.use_global_stats
    assert moved(model) == moved(model, workers=3) == {"half_bias"}


@pytest.mark.parametrize("loss", [nn.ClassSoftmaxLoss(9, [0, 3, 6]), nn.SampledLoss(9)], ids=str)
def test_a_frozen_model_keeps_the_params_of_its_loss(loss):
    model = nn.Sequential([nn.Input(5), nn.Embedding(7, 4), nn.GlobalMaxPooling1D(), nn.Dense(3)])
    model.compile("sgd", loss)
    model.trainable = False
    assert not model.trainable
    assert moved(model, WORDS, WORDS[:, 0]) == set()
    model.trainable = True
    assert moved(model, WORDS, WORDS[:, 0]) > {"dense_weight"}


def test_an_added_layer_and_a_new_loss_get_initial_values(tmp_path):
    model = dense()
    model.fit(X, Y, progress=False)
    before = model.get_weights()
    model.add(nn.Dense(3, name="new"))
    after = model.get_weights()
    assert len(after) == len(before) + 2
    for old, array in zip(before, after, strict=False):
        np.testing.assert_array_equal(old, array)
    model.compile("sgd", nn.ClassSoftmaxLoss(3, [0, 1]))
    assert len(model.get_weights()) > len(after)
    model.save(tmp_path)
    np.testing.assert_array_equal(nn.load_model(tmp_path).predict(X), model.predict(X))


def test_mistakes_are_named_with_their_remedies(tmp_path) -> None:
    for use in (nn.Sequential.get_weights, lambda model: model.predict(X), moved):
        model = dense()
        model.params = {"nonsense": np.ones(3)}
        with pytest.raises(UserError, match="none of the given params.*net, which has"):
            use(model)
    model = dense()
    weights = model.get_weights()
    refused(lambda: model.set_weights([weights[0], np.zeros(3), *weights[2:]]), "array 1", "'dense_bias'")
    refused(lambda: model.set_weights(weights[:1]), "the model has 4 params", "1 are given")
    model.params = {"dense_bias": np.zeros(3)}
    refused(lambda: model.save(tmp_path), "'dense_bias'", r"one has \(3")


def test_a_layer_is_named_without_the_shapes_of_inputs():
    model = nn.Sequential([nn.Dense(3), nn.Flatten(), nn.Dense(2)])
    assert model.get_layer("dense_1") is model.layers[2]


def test_layers_of_a_model_within_another_one_are_frozen_in_both():
    image = nn.Input(4)
    code = nn.Dense(5, activation="tanh", name="code")(image)
    base = nn.Model(image, nn.Dense(3, name="top")(code))
    base.trainable = False
    model = nn.Model(image, nn.Dense(3, name="new")(code))
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert moved(model) == {"new_weight", "new_bias"}


def sequence_model(layer) -> nn.Sequential:
    table, top = nn.Embedding(7, 4, name="table"), nn.Dense(2, name="top")
    model = nn.Sequential([nn.Input(5), table, layer, nn.GlobalMaxPooling1D(), top])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def test_frozen_layers_within_other_layers_keep_their_params():
    inner = nn.GRU(3, return_sequences=True)
    steps = nn.Dense(3)
    for layer, frozen in ((nn.Bidirectional(inner), inner), (nn.TimeDistributed(steps), steps)):
        frozen.trainable = False
        names = moved(sequence_model(layer), WORDS, WORDS[:, 0] % 2)
        assert names == {"table_weight", "top_weight", "top_bias"}
        layer.trainable = True
        assert frozen.trainable


def test_a_frozen_attention_keeps_its_projections():
    words = nn.Input(5)
    table = nn.Embedding(7, 4, name="table", trainable=False)(words)
    seen = nn.MultiHeadAttention(2, 3, name="attention", trainable=False)(table, table)
    model = nn.Model(words, nn.Dense(2, name="top")(nn.GlobalMaxPooling1D()(seen)))
    model.compile("adam", "sparse_categorical_crossentropy")
    assert moved(model, WORDS, WORDS[:, 0] % 2) == {"top_weight", "top_bias"}


def test_weights_have_the_order_of_layers_after_fit_and_after_load(tmp_path):
    model = nn.Sequential([nn.Dense(4, trainable=False), nn.Dense(4), nn.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X, Y, progress=False)
    names = [f"{layer}_{role}" for layer in ("dense", "dense_1", "dense_2") for role in ("weight", "bias")]
    model.save(tmp_path)
    loaded = nn.load_model(tmp_path)
    for trained in (model, loaded):
        for array, name in zip(trained.get_weights(), names, strict=True):
            np.testing.assert_array_equal(array, model.params[name])
    fresh = nn.Sequential([nn.Input(4), nn.Dense(4), nn.Dense(4), nn.Dense(3)])
    fresh.set_weights(array for array in loaded.get_weights())
    np.testing.assert_array_equal(fresh.predict(X), model.predict(X))


@pytest.mark.parametrize("names", [["data"], ["data,kTrain", "data,kVal"]], ids=["train", "val"])
def test_the_printed_model_is_a_job_that_the_command_trains_to_the_same_bits(tmp_path, names):
    model = dense()
    model.layers[0].trainable = False
    val = {} if len(names) == 1 else {"validation_data": (X, Y)}
    model.fit(X, Y, batch_size=7, epochs=2, progress=False, **val)
    write_store(tmp_path / "train.zarr", [(X, Y)])
    (tmp_path / "job.conf").write_text(str(model), encoding="utf-8")
    settings = [f"neuralnet.layer[{name}].store_conf.path={tmp_path / 'train.zarr'}" for name in names]
    paths = [argument for setting in settings for argument in ("--set", setting)]
    arguments = ["train", str(tmp_path / "job.conf"), "--workspace", str(tmp_path / "run"), *paths]
    main_group(arguments, prog_name="dsinga", standalone_mode=False)
    assert_same(read_params(tmp_path / "run"), model.params)
