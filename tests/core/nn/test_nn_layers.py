"""Layers in the words of Keras: what each writes into a job, and that every type of layer can be written."""

import copy
import logging
import pickle
import re
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import LayerConf, LayerType, loads
from dsinga.job.message import readable, set_fields
from dsinga.layers.dense.activation import ElementwiseFunction
from dsinga.testing import LayerCase
from tests.support.installed import is_installed
from tests.support.layer_cases import ALIASES, CASES
from tests.support.refusals import refused
from tests.support.registries import restored_registry

IMAGES, ROWS, STEPS = (3, 9, 8), (12,), (6, 5)


@register("layer", "HalvedFeature")
class HalvedFeature(ElementwiseFunction):
    """A user's layer."""

    def forward(self, x, ops):
        return x / 2

    def backward(self, y, dy, ops):
        return dy / 2


def written(*layers: Any, shape: tuple[int, ...]) -> list[LayerConf]:
    """Return the layers above the input of a chain, without one that makes vectors of its outputs."""
    model = nn.Sequential([nn.Input(shape), *layers])
    return [conf for conf in model.job().neuralnet.layer if conf.name != "data" and not conf.name.endswith("_flat")]


# By the type and settings as a job file has them, whose name is left out: a layer, and the shape of its source.
ALL = {"return_sequences": True}
CHAINS = {
    "kInnerProduct { num_output: 4 }": (nn.Dense(4), ROWS),
    "kInnerProduct { num_output: 4 } per_step: true": (nn.Dense(4), STEPS),
    "kConvolution { num_filters: 4 kernel: 3 }": (nn.Conv2D(4, 3), IMAGES),
    "kConvolution { num_filters: 4 kernel_y: 5 kernel_x: 3 stride: 2 }": (nn.Conv2D(4, (5, 3), 2), IMAGES),
    "kConvolution { num_filters: 6 kernel: 3 pad: 1 group: 3 }": (nn.Conv2D(6, 3, padding="same", groups=3), IMAGES),
    "kConvolution { num_filters: 6 kernel: 3 dilation: 2 }": (nn.Conv2D(6, 3, dilation_rate=2), IMAGES),
    "kConvolution { num_filters: 6 kernel: 3 stride: 2 group: 3 bias_term: false }": (
        nn.DepthwiseConv2D(3, 2, depth_multiplier=2, use_bias=False),
        IMAGES,
    ),
    "kConvolution1D { num_filters: 4 kernel: 2 same: true group: 2 dilation: 3 }": (
        nn.Conv1D(4, 2, dilation_rate=3, groups=2, padding="same"),
        (8, 4),
    ),
    "kPooling { kernel: 2 }": (nn.MaxPooling2D(), IMAGES),
    "kPooling { pool: AVG kernel: 3 stride: 1 pad: 1 count_include_pad: false }": (
        nn.AveragePooling2D(3, 1, padding="same"),
        IMAGES,
    ),
    "kPooling { pool: AVG kernel: 3 stride: 3 pad_y: 0 pad_x: 1 count_include_pad: false }": (
        nn.AveragePooling2D(3, padding=(0, 1)),
        IMAGES,
    ),
    "kPadding { before: 1 after: 1 mode: [kEdge, kPeriodic] }": (nn.Padding2D(1, ("edge", "periodic")), IMAGES),
    "kPadding { before: [1, 2] after: [0, 2] }": (nn.ZeroPadding2D(((1, 0), (2, 2))), IMAGES),
    "kCropping { before: 1 after: 1 }": (nn.Cropping2D(1), IMAGES),
    "kUpsampling { factor: 3 }": (nn.UpSampling2D(3), IMAGES),
    "kUpsampling { factor: [2, 3] method: kLinear }": (nn.UpSampling2D((2, 3), "bilinear"), IMAGES),
    "kTransposedConvolution { num_filters: 4 kernel_y: 3 kernel_x: 2 stride: 2 same: true }": (
        nn.Conv2DTranspose(4, (3, 2), 2, "same"),
        IMAGES,
    ),
    "kTransposedConvolution { num_filters: 4 kernel: 2 stride: 3 output_pad: 1 }": (
        nn.Conv2DTranspose(4, 2, 3),
        IMAGES,
    ),
    "kGroupNorm { groups: 3 }": (nn.GroupNormalization(3), IMAGES),
    "kReshape { shape: 4 shape: -1 }": (nn.Reshape((4, -1)), ROWS),
    "kPooling { pool: AVG global_pooling: true }": (nn.GlobalAveragePooling2D(), IMAGES),
    "kPooling { output_size: [2, 3] }": (nn.AdaptiveMaxPooling2D((2, 3)), IMAGES),
    "kPadding { before: 1 after: 1 value: 2 }": (nn.Padding2D(1, value=2), IMAGES),
    "kPooling1D { }": (nn.GlobalMaxPooling1D(), STEPS),
    "kPooling1D { pool: AVG kernel: 3 stride: 1 }": (nn.AveragePooling1D(3, 1), STEPS),
    "kConvolution1D { num_filters: 4 same: true }": (nn.Conv1D(4, 3, padding="same"), STEPS),
    "kSequenceLength": (nn.SequenceLength(), (6,)),
    "kNormalization { mean: [1, 2] std: 2 inverse: true }": (nn.Normalization([1, 2], std=2, invert=True), (2, 3, 3)),
    "kLRN { local_size: 3 alpha: 5e-5 }": (nn.LocalResponseNormalization(3, 5e-5), IMAGES),
    "kBM { momentum: 0.01 }": (nn.BatchNormalization(0.99), IMAGES),
    "kBM { synchronized: false }": (nn.BatchNormalization(synchronized=False), IMAGES),
    "kLayerNorm { first_axis: 2 }": (nn.LayerNormalization(), STEPS),
    "kLayerNorm": (nn.LayerNormalization((1, 2)), STEPS),
    "kDropout { dropout_ratio: 0.2 }": (nn.Dropout(0.2), ROWS),
    "kDropout { unit: kChannel }": (nn.SpatialDropout2D(0.5), IMAGES),
    "kReLU { negative_slope: 0.1 }": (nn.ReLU(0.1), ROWS),
    "kActivation { type: TANH }": (nn.Activation("tanh"), ROWS),
    "kActivation { type: GELU }": (nn.GELU(), ROWS),
    "kActivation { type: ELU alpha: 0.5 }": (nn.ELU(0.5), ROWS),
    "kActivation { type: HARDSWISH }": (nn.Activation("hard_silu"), ROWS),
    "kPositionalEncoding { scale: 2 }": (nn.PositionalEncoding(scale=2), STEPS),
    "kSoftmax per_step: true": (nn.Softmax(), STEPS),
    "kGRU { dim_hidden: 7 }": (nn.GRU(7, **ALL), STEPS),
    "kGRU { dim_hidden: 7 gate_activation: IDENTITY candidate_activation: RELU }": (
        nn.GRU(7, activation="relu", recurrent_activation=None, **ALL),
        STEPS,
    ),
    "kLSTM { dim_hidden: 7 gate_activation: TANH candidate_activation: SIGMOID cell_activation: SIGMOID }": (
        nn.LSTM(7, "sigmoid", "tanh", **ALL),
        STEPS,
    ),
    "kLSTM { dim_hidden: 7 bidirectional: true }": (nn.Bidirectional(nn.LSTM(7, **ALL)), STEPS),
    "kLSTM { dim_hidden: 7 carry: false }": (nn.LSTM(7, carry=False, **ALL), STEPS),
    "kRNN { dim_hidden: 7 bias_term: false }": (nn.SimpleRNN(7, use_bias=False, **ALL), STEPS),
    "kEmbedding { vocab_size: 50 feature_dim: 8 }": (nn.Embedding(50, 8), (6,)),
    "kOneHot { vocab_size: 50 }": (nn.OneHot(50), (6,)),
    "kImagePreprocess rgbimage_conf { cropsize: 8 pad: 1 }": (nn.RandomCrop(8, 8, pad=1), IMAGES),
    "kImagePreprocess rgbimage_conf { mirror: true }": (nn.RandomFlip(), IMAGES),
    "kLayerNorm { first_axis: 2 } per_step: true": (nn.TimeDistributed(nn.LayerNormalization()), (4, 3, 5)),
    "kInnerProduct { num_output: 4 } partition_dim: 1 location: 0": (nn.Dense(4, partition_dim=1, location=0), ROWS),
    "kInnerProduct { num_output: 4 } exclude: kTest": (nn.Dense(4, exclude=["kTest"]), ROWS),
    "kLRN { local_size: 3 }": (nn.Layer("kLRN", lrn_conf={"local_size": 3}), IMAGES),
}


@pytest.mark.parametrize("text", CHAINS)
def test_a_layer_is_written_as_in_a_job_file_and_pickles(text):
    layer, shape = CHAINS[text]
    text = re.sub(r"^k(\w+) \{", lambda found: f"k{found[1]} {found[1].lower()}_conf {{", text)
    (conf,) = written(layer, shape=shape)
    source = 'layer { name: "data" type: kRecordInput store_conf { } }'
    expected = f'layer {{ name: "{conf.name}" srclayers: "data" type: {text} }}'
    assert conf.replace(param=[]) == loads(f"neuralnet {{ {source} {expected} }}").neuralnet.layer[1]
    copied = pickle.loads(pickle.dumps(layer))
    assert repr(copied) == repr(layer)
    assert written(copied, shape=shape) == [conf]


def test_flatten_is_a_layer_where_the_next_one_takes_no_vectors():
    x = nn.Input(IMAGES)
    vectors = nn.Flatten()(x)
    joined = nn.Concatenate()([vectors, nn.Dense(4)(vectors), nn.Flatten()(x)])
    model = nn.Model(x, [joined, nn.GlobalMaxPooling2D()(x), vectors])
    types = [conf.type.name for conf in model.job().neuralnet.layer]
    assert types == ["kRecordInput", "kInnerProduct", "kReshape", "kConcate", "kPooling", "kReshape"]
    images = np.random.default_rng(0).normal(size=(5, *IMAGES)).astype(np.float32)
    joined, maxima, vectors = model.predict(images)
    np.testing.assert_array_equal(joined[:, :216], images.reshape(5, -1))
    np.testing.assert_array_equal(joined[:, 220:], images.reshape(5, -1))
    np.testing.assert_array_equal(maxima, images.max(axis=(2, 3)))
    np.testing.assert_array_equal(vectors, images.reshape(5, -1))


def test_flattened_features_of_two_shapes_are_added_as_vectors():
    first, second = nn.Input((2, 3, 3), name="first"), nn.Input((3, 6), name="second")
    arrays = [np.random.default_rng(0).normal(size=(5, *x.rows)).astype(np.float32) for x in (first, second)]
    model = nn.Model([first, second], nn.Add()([nn.Flatten()(first), nn.Flatten()(second)]))
    np.testing.assert_array_equal(model.predict(arrays), sum(array.reshape(5, -1) for array in arrays))


def test_the_last_step_is_that_before_the_end_of_each_sequence_and_of_each_direction():
    codes = nn.Input(6, name="codes")
    words = nn.Embedding(9, 4)(codes)
    both = nn.Bidirectional(nn.GRU(3, name="both"))(words, nn.SequenceLength()(codes))
    model = nn.Model(codes, [both, nn.SimpleRNN(5)(words)])
    numbers = np.where(np.arange(6) < np.array([[6], [2], [4]]), np.arange(18).reshape(3, 6) % 9, -1)
    ends, last = model.predict(numbers.astype(np.float32))
    steps, every = model.features(numbers.astype(np.float32), ["both", "simple_rnn"])
    rows, stops = np.arange(3), np.array([5, 1, 3])
    np.testing.assert_array_equal(ends, np.concatenate([steps[rows, stops, :3], steps[rows, 0, 3:]], axis=1))
    np.testing.assert_array_equal(last, every[:, -1])


def test_an_activation_is_a_layer_of_its_own():
    assert [(conf.name, conf.type.name) for conf in written(nn.Dense(4, "tanh", name="fc"), shape=ROWS)] == [
        ("fc", "kInnerProduct"),
        ("fc_tanh", "kActivation"),
    ]
    assert len(written(nn.Dense(4, "linear"), shape=ROWS)) == 1


def test_params_that_say_nothing_are_in_the_job_where_they_are_given():
    given, not_given = (written(nn.Dense(4, param=params), shape=ROWS)[0] for params in ([{}, {}], None))
    assert [len(conf.param) for conf in (given, not_given)] == [2, 1]


def test_params_have_initialisers_scales_and_names():
    (conf,) = written(
        nn.Dense(4, kernel_initializer=nn.RandomNormal(stddev=0.1), lr_scale=(1, 2), wd_scale=(250, 0)), shape=ROWS
    )
    assert [readable(set_fields(param).get("init") and param.init.type) for param in conf.param] == ["kGaussian", None]
    assert [(param.lr_scale, param.wd_scale) for param in conf.param] == [(1, 250), (2, 0)]
    (conf,) = written(nn.Dense(4, param=[nn.Param("w", "ones", lr_scale=3), {"name": "b"}], lr_scale=2), shape=ROWS)
    assert [(param.name, param.lr_scale) for param in conf.param] == [("w", 2), ("b", 2)]
    assert conf.param[0].init.value == 1


@pytest.mark.parametrize("name", [kind.name for kind in LayerType if is_installed("layer", kind.name)])
def test_every_type_of_layer_can_be_written(name):
    cases = [case for case in CASES if case.kind == ALIASES.get(name, name)]
    if name == "kVTraceLoss":  # its own tests have cases of another class
        cases = [LayerCase(name, [(5, 5, 3), (5, 5, 1), *[(5, 4)] * 4])]
    if name == "kCachedAttention":  # has no gradient, which the contract needs
        cases = [LayerCase(name, [(5, 1, 4)] * 3)]
    if name == "kUserLayer":
        (conf,) = written(nn.Layer("HalvedFeature", name="h"), shape=ROWS)
        assert conf == LayerConf(name="h", type="kUserLayer", user_type="HalvedFeature", srclayers=["data"])
        return
    if name in ("kRBMVis", "kRBMHid"):
        types = [conf.type.name for conf in written(nn.RBM(4), shape=ROWS)]
        assert types == ["kRBMVis", "kRBMHid"]
        return
    if name in ("kFunction", "kFunctionLoss"):  # functions are of PyTorch: test_nn_functions.py
        return
    assert cases, f"no case for {name}"
    for case in cases:
        sources = [nn.Input(tuple(shape[1:]), name=f"source{number}") for number, shape in enumerate(case.shapes)]
        symbol = nn.Layer(name, name="layer", **case.conf)(*sources)
        model = nn.Model(sources or [nn.Input((3,))], symbol)
        (conf,) = (conf for conf in model.job().neuralnet.layer if conf.name == "layer")
        expected = LayerConf(
            name="layer", type=name, srclayers=[f"source{k}" for k in range(len(sources))], **case.conf
        )
        assert conf == expected


def test_models_pickle_with_shared_layers_parts_and_params():
    shared = nn.Dense(4, "relu", lr_scale=(1, 2))
    x, z = nn.Input(6, name="a"), nn.Input((3, 6), name="b")
    first, second = nn.Slice(2)(nn.Add()([shared(x), shared(nn.Layer("kReLU", name="other")(x))]))
    steps = nn.TimeDistributed(nn.Dense(4))(nn.Bidirectional(nn.GRU(3, return_sequences=True))(z))
    model = nn.Model(
        [x, z], nn.Concatenate()([second, first, nn.Dense(2)(nn.GlobalMaxPooling1D()(steps)), nn.Dense(2)(x)])
    )
    model.compile(nn.Adam(0.01), nn.EuclideanLoss())
    records = [np.ones((2, 6), np.float32), np.ones((2, 3, 6), np.float32)]
    before = model.predict(records)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert str(copied.job()) == str(model.job())
        np.testing.assert_array_equal(copied.predict(records), before)


IMAGE_LAYERS = (
    nn.Conv2D(8, 3), nn.MaxPooling2D(), nn.AveragePooling2D(3), nn.GlobalMaxPooling2D(), nn.GlobalAveragePooling2D(),
    nn.BatchNormalization(), nn.LocalResponseNormalization(), nn.RandomCrop(9, 9), nn.RandomFlip(), nn.ZeroPadding2D(),
)  # fmt: skip


@pytest.mark.parametrize("layer", IMAGE_LAYERS, ids=lambda layer: layer.kind)
def test_image_layers_take_records_with_channels_last_unless_they_are_said_to_be_first(layer, caplog):
    x, y = np.zeros((10, 12, 12, 3), np.float32), np.arange(10) % 3

    def net(*inputs):
        made = nn.Sequential([*inputs, nn.Rescaling(0.5), layer, nn.Dense(3)])
        made.compile("sgd", "sparse_categorical_crossentropy")
        return made

    with caplog.at_level(logging.WARNING, "dsinga"):
        last = str(net(nn.Input((12, 12, 3), data_format="channels_last")).job(x, y))
        assert not caplog.messages
        assert str(net(nn.Input((12, 12, 3))).job(x, y)) == last
        assert str(net().job(x, y)) == last.replace("shape: [12, 12, 3] ", "")
    assert len(caplog.messages) == 2
    assert all("taken as images with their channels last" in message for message in caplog.messages)
    refused(lambda: net(nn.Input((12, 12, 3), data_format="channels_first")), "channels are last", "begin with nn")
    with pytest.raises(UserError, match=r"channels are last; begin with nn.Input"):
        net().job(x, np.zeros((10, 12, 12, 1), int))  # labels that are images are taken as channels first before
    assert net().job(np.moveaxis(x, -1, 1), y).neuralnet.layer


@pytest.mark.parametrize("shape", [(3, 12, 12), (4, 4, 4), (12, 12, 5), (12, 9, 3), (12, 12)])
def test_images_that_may_be_channels_first_are_taken_as_they_are(shape):
    assert written(nn.Conv2D(8, 3), nn.Dense(3), shape=shape)


def test_features_with_few_columns_are_no_images_with_channels_last():
    assert written(nn.Conv2D(8, 5), nn.Conv2D(8, (1, 6)), nn.Conv2D(3, 1), shape=(1, 12, 12))


def test_all_functions_are_found_by_completion_and_are_documented():
    for name in nn.__all__:
        if is_installed("word", name) and is_installed("layer", f"k{name}"):
            assert name in dir(nn)
            assert getattr(nn, name).__doc__
    assert "HalvedFeature" in dir(nn)
    assert "units: the number of outputs for each row." in (nn.Dense.__doc__ or "")


def test_a_user_may_take_the_place_of_a_built_in_layer():
    with restored_registry():

        @register("layer", "kInnerProduct")
        class Doubled(ElementwiseFunction):
            def forward(self, x, ops):
                return x * 2

            def backward(self, y, dy, ops):
                return dy * 2

        refused(lambda: written(nn.Dense(3), shape=ROWS), "num_output")
        assert [conf.type.name for conf in written(nn.Layer("kInnerProduct"), shape=ROWS)] == ["kInnerProduct"]
    assert written(nn.Dense(3), shape=ROWS)[0].innerproduct_conf.num_output == 3


def test_identity_is_no_layer_and_split_hands_out_its_source():
    x = nn.Input((4,))
    first, second = nn.Split(2)(nn.Identity()(x))
    model = nn.Model(x, nn.Add()([nn.Dense(3)(first), nn.Dense(3)(second)]))
    model.compile("sgd", "mse")
    sources = {layer.name: list(layer.srclayers) for layer in model.job(train_steps=1, batch_size=2).net.layer}
    assert sources["split"] == ["data"]
    assert [sources[name] for name in ("split_0", "split_1")] == [["split"]] * 2
    assert [sources[name] for name in ("dense", "dense_1", "add")] == [["split_0"], ["split_1"], ["dense", "dense_1"]]
