"""Random nets by hypothesis: chains and branches of every type of layer, cut and placed at random."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dsinga.base.registry import lookup
from dsinga.job import LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.net import NeuralNet, create_net

CLASSES = 4
ELEMENTWISE = "kReLU kSigmoid kSTanh kActivation kCudnnActivation kDropout kDummy kBridgeSrc kBridgeDst".split()
WHOLE_ROWS = "kSoftmax kCudnnSoftmax kBM kCudnnBM".split()
IMAGES = "kConvolution kCConvolution kCudnnConv kPooling kCPooling kCudnnPool kLRN kCudnnLRN".split()
FIELDS = "kPadding kCropping kUpsampling kTransposedConvolution kGroupNorm".split()
LABEL_LOSSES = "kEuclideanLoss kHuberLoss".split()
CLASS_LABELS: dict[str, Any] = {}  # what RecordInfo says of the labels
NUMBERS = {"label_dtype": np.float32}
MATRICES = [{"label_shape": (3,)}, {"label_shape": (2,), **NUMBERS}]
VECTOR_INPUTS = "kRecordInput kCSVInput kLMDBData kShardData".split()


class Draft:
    """A net as it grows: configurations, and the layers that they make, for their shapes."""

    def __init__(self, draw: Callable[..., Any], parts: int):
        self.draw, self.parts = draw, parts
        self.rows = draw(st.integers(parts, 9))
        self.labels = draw(st.sampled_from([CLASS_LABELS, CLASS_LABELS, NUMBERS, *MATRICES]))
        self.confs: list[LayerConf] = []
        self.layers: dict[str, Layer] = {}
        self.inputs: dict[str, RecordInfo] = {}
        self.tips: list[str] = []  # what a layer can take as its source: features of whole batches

    def add(self, kind: str, *sources: str, shape: Shape | None = None, info: RecordInfo | None = None, **conf) -> str:
        """Add a layer, cut and placed at random; ``shape`` is what it takes, if not the feature of its source."""
        name = f"{kind[1:].lower()}{len(self.confs)}"
        place = {
            "partition_dim": self.draw(st.sampled_from([None, 0, 1, 1, -1])),
            "location": self.draw(st.sampled_from([None, None, None, *range(self.parts)])),
        }
        made = LayerConf(name=name, type=kind, srclayers=list(sources), **place, **conf)
        shapes = [shape] if shape else [self.layers[source].shape for source in sources]
        self.confs.append(made)
        self.layers[name] = lookup("layer", kind)(made, shapes, info)
        if info:
            self.inputs[name] = info
        if not self.layers[name].part_shapes and not self.layers[name].is_output:
            self.tips.append(name)
        return name

    def source(self) -> str:
        """Return one of the layers, rather a late one."""
        return self.draw(st.sampled_from([*self.tips, *self.tips[-2:], *self.tips[-1:] * 2]))

    def shape(self, name: str) -> Shape:
        return self.layers[name].shape


@st.composite
def nets(draw: Callable[..., Any], parts: int) -> NeuralNet:
    """A net that can be cut for ``parts`` workers: at least as many rows, and features, as there are workers."""
    draft = Draft(draw, parts)
    data = add_input(draft)
    for _ in range(draw(st.integers(1, 6))):
        draw(st.sampled_from([add_plain, add_plain, add_dense, add_dense, add_images, add_images, add_fan, add_join]))(
            draft
        )
    for _ in range(draw(st.integers(1, 2))):
        draw(st.sampled_from([add_euclidean_loss] if draft.labels else [add_softmax_loss, add_euclidean_loss]))(
            draft, data
        )
    if draw(st.booleans()):
        add_output(draft, data)
    net = NetConf(layer=draft.confs, partition_dim=draw(st.sampled_from([-1, 0, 1])))
    return create_net(net, Phase.kTrain, draft.inputs)


def add_input(draft: Draft) -> str:
    """Add the layer that gives the labels, and perhaps one more input or one that prepares images."""
    draw, wide = draft.draw, draft.parts + draft.draw(st.integers(0, 3))
    store = {"store_conf": {"path": "x", "batchsize": [draft.rows]}}
    if draw(st.booleans()):
        data = draft.add(
            draw(st.sampled_from(VECTOR_INPUTS)), info=RecordInfo((wide,), draft.rows, **draft.labels), **store
        )
    else:
        data = draft.add("kRecordInput", info=RecordInfo((wide, 6, 5), draft.rows, **draft.labels), **store)
        prepare = draw(st.sampled_from(["", "kImagePreprocess", "kRGBImage", "kMnist"]))
        if prepare:
            more = {"mnist_conf": {"norm_a": 2, "norm_b": 1}} if prepare == "kMnist" else {"rgbimage_conf": CROP}
            draft.add(prepare, data, **more)
    extra = draw(st.sampled_from(["", "", "kDummy", "kRecordInput"]))
    if extra == "kDummy":
        draft.add("kDummy", dummy_conf={"input": True, "shape": [draft.rows, wide]})
    elif extra:
        draft.add("kRecordInput", info=RecordInfo((wide,), draft.rows), **store)
    return data


CROP = {"cropsize": 5, "mirror": True, "scale": 0.5}


def add_plain(draft: Draft) -> None:
    """Add a layer that takes and gives any shape."""
    kind = draft.draw(st.sampled_from(ELEMENTWISE + WHOLE_ROWS))
    more: dict[str, Any] = {"dropout_conf": {"dropout_ratio": 0.3}} if kind == "kDropout" else {}
    if kind == "kActivation":
        more = {"activation_conf": {"type": draft.draw(st.sampled_from(["RELU", "SIGMOID", "TANH", "STANH"]))}}
    draft.add(kind, draft.source(), **more)


def add_dense(draft: Draft, outputs: int = 0) -> str:
    """Add a fully connected layer, which may share the weight of an earlier one."""
    source = draft.source()
    outputs = outputs or draft.parts + draft.draw(st.integers(0, 4))
    param: list[dict[str, Any]] = []
    twins = [
        one.name
        for one in draft.confs
        if one.innerproduct_conf
        and not one.innerproduct_conf.transpose
        and not one.param
        and draft.layers[one.name].params[0].shape == (outputs, math.prod(draft.shape(source)[1:]))
    ]
    transpose = draft.draw(st.booleans())
    if twins and draft.draw(st.booleans()):
        param, transpose = [{"share_from": f"{twins[-1]}_weight"}], False
    return draft.add(
        "kInnerProduct", source, innerproduct_conf={"num_output": outputs, "transpose": transpose}, param=param
    )


def add_images(draft: Draft) -> None:
    """Add a layer that takes images, where there are any; else one that does not."""
    images = [name for name in draft.tips if len(draft.shape(name)) == 4 and min(draft.shape(name)[2:]) >= 3]
    if not images:
        add_plain(draft)
        return
    draw, kind = draft.draw, draft.draw(st.sampled_from(IMAGES + FIELDS))
    source = draw(st.sampled_from([*images, images[-1]]))
    if kind in FIELDS:
        add_field(draft, kind, source)
    elif "Conv" in kind:
        filters = draft.parts + draw(st.integers(0, 3))
        window = {"num_filters": filters, "kernel": 3, "pad": 1, "stride": draw(st.integers(1, 2))}
        draft.add(kind, source, convolution_conf=window)
    elif "Pool" in kind:
        pool = {"pool": draw(st.sampled_from(["MAX", "AVG"])), "kernel": 3, "pad": draw(st.integers(0, 1)), "stride": 1}
        draft.add(kind, source, pooling_conf=pool)
    else:
        draft.add(kind, source, lrn_conf={"local_size": 3, "alpha": 0.1})


def add_field(draft: Draft, kind: str, source: str) -> None:
    """Add a layer of fields, which makes images larger only where they are small."""
    draw, (_, channels, *size) = draft.draw, draft.shape(source)
    if kind == "kPadding":
        modes = st.sampled_from(["kZero", "kEdge", "kReflect", "kPeriodic"])
        sides = {"before": [1], "after": [draw(st.integers(0, 2))], "mode": [draw(modes), draw(modes)]}
        draft.add(kind, source, padding_conf=sides)
    elif kind == "kGroupNorm" and channels % draft.parts == 0:  # other groups cannot be cut
        draft.add(kind, source, groupnorm_conf={"groups": channels})
    elif kind == "kCropping" or max(size) > 8:
        draft.add("kCropping", source, cropping_conf={"before": [draw(st.integers(0, 1))], "after": [0, 1]})
    elif kind == "kUpsampling":
        method = draw(st.sampled_from(["kNearest", "kLinear"]))
        draft.add(kind, source, upsampling_conf={"factor": [2, 1], "method": method})
    else:
        window = {"num_filters": draft.parts + draw(st.integers(0, 3)), "kernel": 2, "stride": draw(st.integers(1, 2))}
        draft.add("kTransposedConvolution", source, transposedconvolution_conf=window)


def add_fan(draft: Draft) -> None:
    """Add a kSplit or kSlice of the job's own, a branch for each part, and a kConcate that joins the branches."""
    draw, source = draft.draw, draft.source()
    shape, kind = draft.shape(source), draw(st.sampled_from(["kSplit", "kSlice"]))
    axis = draw(st.integers(0, 1)) if kind == "kSlice" else 1
    count = draw(st.integers(1, 3))
    if shape[axis] < count * draft.parts:  # a part of fewer rows or features than workers is refused
        return
    conf: dict[str, Any] = {"split_conf": {"num_splits": count}}
    if kind == "kSlice":
        conf = {"slice_conf": {"slice_dim": axis, "num_slices": count}}
    fan = draft.add(kind, source, **conf)
    parts = draft.layers[fan].part_shapes
    outputs = draft.parts + draw(st.integers(0, 2))
    branches = []
    for part in parts:
        if draw(st.booleans()) and axis == 1 and len(shape) == 2:
            branch = draft.add("kInnerProduct", fan, shape=part, innerproduct_conf={"num_output": outputs})
        else:
            branch = draft.add(draw(st.sampled_from(["kSigmoid", "kReLU", "kSTanh"])), fan, shape=part)
        branches.append(branch)
    draft.tips = [name for name in draft.tips if name not in branches or axis == 1]
    draft.add("kConcate", *branches, concate_conf={"concate_dim": axis})


def add_join(draft: Draft) -> None:
    """Add a kConcate of two layers, along their features."""
    first = draft.source()
    fits = [
        name
        for name in draft.tips
        if draft.shape(name)[:1] + draft.shape(name)[2:] == draft.shape(first)[:1] + draft.shape(first)[2:]
    ]
    second = draft.draw(st.sampled_from(fits))
    if second != first:
        draft.add("kConcate", first, second, concate_conf={"concate_dim": 1})


def add_softmax_loss(draft: Draft, data: str) -> None:
    """Add a fully connected layer and a loss, whose labels may come by way of a layer below it."""
    scores = add_dense(draft, max(CLASSES, draft.parts))
    kind = draft.draw(st.sampled_from(["kSoftmaxLoss", "kCudnnSoftmaxLoss"]))
    sources = scores, label_giver(draft, data), *add_weights(draft)
    draft.tips.remove(draft.add(kind, *sources, softmaxloss_conf={"scale": 0.5}))


def add_euclidean_loss(draft: Draft, data: str) -> None:
    """Add a loss that draws two fully connected layers together, or one to the labels: numbers, or rows of a matrix."""
    kind = "kEuclideanLoss"
    if draft.draw(st.booleans()):
        one, other = add_dense(draft, draft.parts + 1), add_dense(draft, draft.parts + 1)
    else:
        kind, shape = draft.draw(st.sampled_from(LABEL_LOSSES)), draft.labels.get("label_shape", ())
        one = draft.add("kInnerProduct", draft.source(), innerproduct_conf={"num_output": math.prod(shape)})
        conf = draft.confs[-1]  # one number cannot be cut over several workers
        draft.confs[-1] = conf.replace(partition_dim=draft.draw(st.sampled_from([0, -1])))
        giver = label_giver(draft, data)
        other = draft.add("kLabel", giver, shape=(draft.shape(giver)[0], *shape))
        draft.tips.remove(other)
    draft.tips.remove(draft.add(kind, one, other, *add_weights(draft)))


def add_weights(draft: Draft) -> list[str]:
    """Return the name of a new input layer with a weight for each row, or nothing."""
    if draft.draw(st.integers(0, 2)):
        return []
    info, store = RecordInfo((), draft.rows, has_labels=False), {"path": "x", "batchsize": [draft.rows]}
    weights = draft.add("kRecordInput", info=info, store_conf=store)
    draft.tips.remove(weights)
    return [weights]


def add_output(draft: Draft, data: str) -> None:
    """Add a layer at the end of the net."""
    kinds = ["kArgSort", "kCSVOutput", "kRecordOutput", *(["kAccuracy"] if not draft.labels else [])]
    kind = draft.draw(st.sampled_from(kinds))
    if kind == "kAccuracy":
        draft.add(kind, add_dense(draft, max(CLASSES, draft.parts)), label_giver(draft, data))
    elif kind == "kArgSort":
        draft.add(kind, draft.source(), argsort_conf={"topk": 1})
    else:
        draft.add(kind, draft.source(), store_conf={"path": "out"})


def label_giver(draft: Draft, data: str) -> str:
    """Return the input layer that has labels, or a layer with one source after the other up to it."""
    chain = [data]
    for conf in draft.confs:
        if conf.srclayers == chain[-1:] and conf.name in draft.tips:
            chain.append(conf.name)
    return draft.draw(st.sampled_from(chain))
