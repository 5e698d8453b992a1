"""Configurations that layers refuse in their constructors: each message names the layer, the fault and a remedy."""

from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import LayerConf
from dsinga.layers import RecordInfo
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.metrics.score_curves import roc_auc
from tests.support.refusals import check_refusal, refusal

ROWS, IMAGES, STEPS = (6, 12), (6, 3, 8, 8), (6, 7, 3)
QUERIES, KEYS = (6, 4, 8), (6, 5, 8)
ADDITIVE = {"attention_conf": {"score": "kAdditive"}}
INFO = RecordInfo((1, 28, 28), 64)

# type, configuration or the fields of that of its name, shapes of sources, parts of the message.
REFUSED: list[tuple[str, dict[str, Any], list[tuple[int, ...]], list[str]]] = [
    # Numbers of sources.
    ("kReLU", {}, [], ["takes 1 source layer, not 0", "srclayers"]),
    ("kInnerProduct", {"num_output": 2}, [ROWS, ROWS], ["takes 1 source layer, not 2"]),
    ("kSoftmaxLoss", {}, [ROWS], ["takes 2 or 3 source layers, not 1"]),
    ("kHingeLoss", {}, [ROWS, ROWS, ROWS], ["takes 2 source layers, not 3"]),
    ("kEuclideanLoss", {}, [ROWS], ["takes 2 or 3 source layers, not 1"]),
    ("kConcate", {}, [], ["at least 1 source layer"]),
    ("kDummy", {"input": True, "shape": [6, 2]}, [ROWS], ["takes no source layer, not 1"]),
    ("kAdd", {}, [], ["at least 1 source layer, not 0"]),
    ("kSigmoidCrossEntropyLoss", {}, [ROWS], ["takes 2 or 3 source layers, not 1"]),
    # Configurations that are missing or invalid.
    ("kConvolution", {}, [IMAGES], ["needs convolution_conf { num_filters"]),
    ("kInnerProduct", {}, [ROWS], ["needs innerproduct_conf { num_output"]),
    ("kCSVOutput", {}, [ROWS], ["needs store_conf { path"]),
    ("kRecordOutput", {"store_conf": {"backend": "kvfile"}}, [ROWS], ["needs store_conf { path"]),
    ("kDummy", {"input": True}, [], ["needs dummy_conf { shape"]),
    ("kInnerProduct", {"num_output": 0}, [ROWS], ["num_output must be at least 1, not 0"]),
    ("kLRN", {"local_size": 4}, [IMAGES], ["local_size is 4", "odd"]),
    ("kActivation", {"type": "MISH", "alpha": 1}, [ROWS], ["MISH takes no alpha; leave it out"]),
    ("kActivation", {"type": "CELU", "alpha": 0}, [ROWS], ["CELU divides by alpha"]),
    ("kResize", {}, [IMAGES], ["give resize_conf a size"]),
    ("kResize", {"scale": [0.1]}, [IMAGES], ["leaves no point along an axis"]),
    ("kResize", {"size": [3, 4, 5]}, [IMAGES], ["2 axes follow the channels"]),
    ("kIndex", {"index": "[0, 3]"}, [IMAGES], ["[[0, 3]] is outside of an axis of 3"]),
    ("kIndex", {"index": "[0], :, [1]"}, [IMAGES], ["has several lists"]),
    ("kIndex", {"index": "::0"}, [IMAGES], ["step cannot be zero"]),
    # Ranks and windows.
    ("kConvolution", {"num_filters": 2}, [ROWS], ["takes images", "'data' gives 6 x 12"]),
    ("kPooling", {}, [ROWS], ["takes images (batch, channels, height, width)", "store_conf"]),
    ("kLRN", {}, [ROWS], ["takes images", "6 x 12"]),
    ("kBM", {}, [(6,)], ["takes (batch, channels, ...)"]),
    ("kPReLU", {}, [(6,)], ["takes (batch, channels, ...)"]),
    ("kRGBImage", {}, [ROWS], ["takes images"]),
    ("kConvolution", {"num_filters": 2, "kernel": 13, "pad": 2}, [IMAGES], ["13 x 13 does", "by 2 x 2", "pad larger"]),
    ("kConvolution", {"num_filters": 2, "pad_x": 1, "same": True}, [IMAGES], ["both pad_x and same", "leave one"]),
    ("kPooling", {"global_pooling": True, "same": True}, [IMAGES], ["leave out same"]),
    ("kPooling", {"output_size": [3], "dilation": 2}, [IMAGES], ["says which windows there are; leave out dilation"]),
    ("kPooling", {"output_size": [3], "ceil": True}, [IMAGES], ["leave ceil out"]),
    ("kPooling", {"kernel": 2, "dilation": 9, "pad": 4, "stride": 1}, [IMAGES], ["nothing but padding of 4 x 4"]),
    ("kPooling", {"kernel_x": 9}, [IMAGES], ["kernel of 3 x 9 does not fit", "kernel smaller"]),
    ("kPooling", {"kernel_x": 2, "pad_x": 2}, [IMAGES], ["3 x 2 would cover", "padding of 0 x 2"]),
    ("kImagePreprocess", {"rgbimage_conf": {"cropsize": 9}}, [IMAGES], ["cannot cut 9 x 9 out of images of 8 x 8"]),
    ("kRGBImage", {"meanfile": "m.bin"}, [IMAGES], ['mean_file: "m.bin"', "input layer"]),
    ("kPooling", {"global_pooling": True, "kernel": 2, "pad": 1}, [IMAGES], ["whole image", "out kernel and pad"]),
    ("kLayerNorm", {"first_axis": 2}, [ROWS], ["first_axis is 2", "'data' gives 6 x 12", "1 to 1"]),
    # Attention.
    ("kAttention", {}, [(6, 4, 8)], ["takes queries (batch, steps, n)", "not 1 source layers", "srclayers"]),
    ("kAttention", {}, [(6, 4, 8), (6, 4)], ["takes sequences", "'more' gives 6 x 4", "kEmbedding"]),
    ("kAttention", {}, [(6, 4, 8), (6, 5, 6)], ["'data', 6 x 4 x 8, with 'more', 6 x 5 x 6", "kInnerProduct"]),
    ("kAttention", {"num_heads": 3}, [QUERIES, KEYS], ["8 features into 3 equal", "num_heads a number"]),
    ("kAttention", {"causal": True}, [QUERIES, KEYS], ["4 queries and 5 keys", "leave causal out"]),
    ("kAttention", {}, [QUERIES, KEYS, QUERIES], ["'more', 6 x 5 x 8, with 'a', 6 x 4 x 8", "values as keys"]),
    ("kAttentionWeights", ADDITIVE, [QUERIES, KEYS], ["by a param, kAdditive", 'param { share_from: "NAME_score" }']),
    ("kPositionalEncoding", {}, [ROWS], ["takes sequences (batch, steps, features)", "6 x 12", "kEmbedding"]),
    # Steps.
    ("kConvolution1D", {"num_filters": 2, "kernel": 9}, [STEPS], ["9 does not fit 7 steps padded by 0", "same: true"]),
    ("kConvolution1D", {"num_filters": 2, "pad": 1, "same": True}, [STEPS], ["pad and same"]),
    ("kPooling1D", {"kernel": 8}, [STEPS], ["kernel of 8 does not fit 7 steps", "kernel smaller"]),
    ("kPooling1D", {"stride": 2}, [STEPS], ["pools over all steps", "no stride; give it a kernel"]),
    ("kPooling1D", {"pool": "ENDS"}, [(6, 7, 3)], ["3 a step, which have no halves", "pool: LAST"]),
    ("kReshape", {"shape": [5, 3]}, [ROWS], ["5 x 3", "have 12 numbers; give a shape of as many"]),
    ("kReshape", {"shape": [-1, -1]}, [ROWS], ["above 0, one of which may be -1"]),
    ("kReshape", {"shape": [-2]}, [ROWS], ["shape must be at least -1, not -2"]),
    ("kPooling1D", {}, [STEPS, (6, 6)], ["7 steps from labels (batch, 7), but those of 'more' are 6 x 6"]),
    ("kPooling1D", {}, [ROWS], ["takes sequences", "put a kEmbedding layer between"]),
    ("kConvolution1D", {"num_filters": 2}, [ROWS], ["takes sequences", "kEmbedding"]),
    ("kSequenceLength", {}, [STEPS], ["takes codes", "give it the input layer of the words"]),
    ("kLearnedVector", {}, [ROWS], ["needs learnedvector_conf"]),
    # Shapes that do not fit each other.
    ("kCosineSimilarity", {}, [ROWS, (6, 11)], ["compares 'data', 6 x 12, with 'more', 6 x 11", "num_output"]),
    ("kRegressionError", {}, [(6, 3), (6, 2)], ["compares 'data', 6 x 3, with labels 6 x 2 of 'more'"]),
    ("kAdd", {}, [ROWS, (6, 11)], ["'data', 6 x 12, with 'more', 6 x 11", "to one shape"]),
    ("kMultiply", {}, [IMAGES, ROWS], ["'data', 6 x 3 x 8 x 8", "dense layer or a convolution"]),
    ("kHingeLoss", {"topk": 13}, [ROWS, ROWS], ["topk is 13", "12 classes"]),
    ("kEuclideanLoss", {}, [ROWS, ROWS, (6, 2)], ["one weight for each of 6 rows from 'a', which gives 6 x 2"]),
    ("kSoftmaxLoss", {}, [ROWS, ROWS, (5,)], ["one weight for each of 6 rows", "records that are one number"]),
    ("kSigmoidCrossEntropyLoss", {}, [ROWS, (6, 11)], ["compares 'data', 6 x 12", "rows as long"]),
    ("kSoftmaxLoss", {}, [ROWS, (5, 12)], ["'data' gives 6 rows", "'more' 5 labels", "same batchsize"]),
    ("kAccuracy", {}, [ROWS, (7, 12)], ["6 rows", "7 labels"]),
    ("kEuclideanLoss", {}, [ROWS, (6, 11)], ["compares 'data', 6 x 12, with 'more', 6 x 11", "rows as long"]),
    ("kSoftmax", {"num_softmax_per_instance": 5}, [ROWS], ["12 features into 5", "divides 12"]),
    ("kSoftmaxLoss", {"topk": 13}, [ROWS, ROWS], ["topk is 13", "12 classes", "1 to 12"]),
    ("kSlice", {"slice_dim": 2}, [ROWS], ["slice_dim is 2", "'data' gives 6 x 12", "0 to 1"]),
    ("kSlice", {"slice_dim": 1, "num_slices": 13}, [ROWS], ["dimension 1 of 6 x 12 has 12", "1 to 12"]),
    ("kConcate", {"num_concates": 3}, [ROWS, ROWS], ["num_concates is 3", "2 sources", "leave"]),
    ("kConcate", {"concate_dim": 1}, [ROWS, (5, 12)], ["'data', 6 x 12", "'more', 5 x 12", "equal"]),
    ("kConcate", {"concate_dim": 1}, [ROWS, IMAGES], ["cannot join", "6 x 3 x 8 x 8"]),
]


def check_refused(kind: str, conf: dict[str, Any], shapes: list[tuple[int, ...]], parts: list[str]) -> None:
    """Check that a layer of sources with these shapes is refused by a message with these parts."""
    if conf and not any(name.endswith("_conf") for name in conf):
        conf = {f"{kind[1:].lower()}_conf": conf}
    layer = LayerConf(name="it", type=kind, srclayers=["data", "more", "a", "b", "c", "d"][: len(shapes)], **conf)
    with pytest.raises(UserError) as raised:
        lookup("layer", kind)(layer, shapes)
    for part in ("layer 'it': ", *parts):
        assert part in str(raised.value)


@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_is_refused_where_the_layer_is_made(fault: tuple[Any, ...]):
    check_refused(*fault)


RECORDS: list[tuple[RecordInfo, dict[str, Any], list[str]]] = [
    (INFO, {"shape": [3, 32, 32]}, ["3 x 32 x 32 (3072 numbers)", "1 x 28 x 28 (784 numbers)", "leave shape out"]),
    (RecordInfo((4,), 2, std=np.array([1, 0, 1, 1])), {}, ["std_file has zeros"]),
    (RecordInfo((4,), 2, mean=np.zeros(3)), {}, ["the mean has the shape 3, a record 4", "mean_file"]),
    (RecordInfo((2, 4), 2, std=np.ones((3, 2, 4))), {}, ["the std has the shape 3 x 2 x 4", "std_file"]),
]


@pytest.mark.parametrize(("info", "store", "parts"), RECORDS)
def test_records_that_do_not_fit_the_job_are_refused(info: RecordInfo, store: dict[str, Any], parts: list[str]):
    with pytest.raises(UserError) as raised:
        lookup("layer", "kRecordInput")(LayerConf(name="data", type="kRecordInput", store_conf=store), [], info)
    for part in ("layer 'data': ", *parts):
        assert part in str(raised.value)


def test_an_image_mean_of_another_size_is_refused():
    conf = LayerConf(name="image", type="kRGBImage", srclayers=["data"])
    with pytest.raises(UserError, match="the mean has the shape 3 x 4 x 4, an image 3 x 8 x 8"):
        lookup("layer", "kRGBImage")(conf, [IMAGES], RecordInfo(IMAGES[1:], 6, mean=np.zeros((3, 4, 4))))


def test_shapes_in_messages_are_short() -> None:
    assert shape_text((3, 32, 32)) == "3 x 32 x 32"
    assert shape_text(()) == "a single number"
    assert shape_text([36] * 300) == "36 x 36 x 36 x 36 x ... (300 axes)"


MISTAKES = [
    refusal(lambda: nn.Sequential([nn.Input((3, 8, 8)), nn.ConvLSTM2D(4, 3)]).job(), "put nn", "Reshape between"),
    refusal(lambda: roc_auc(np.array([0, 2]), np.ones(2)), "but there is 2", "for numbers to"),
    refusal(lambda: roc_auc(np.array(["a", "b"]), np.ones(2)), "0 and", "1, not a"),
    refusal(lambda: roc_auc(np.array([0, 3]), np.ones((2, 3))), "0 to", "for each column"),
    refusal(lambda: roc_auc(np.ones((2, 4)), np.ones((2, 3))), "3 predictions", "record with labels"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
