"""LayerProto, and the configuration of each layer type that reads no store (SINGA 0.3's job.proto)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any, ClassVar

from dsinga.job.enums import ActivationType, DropoutUnit, HingeNorm, LayerType, Phase, PoolMethod, UnrollConnType
from dsinga.job.inputconf import CharRNNConf, DataConf, MnistConf, OnehotConf, RGBImageConf, StoreConf
from dsinga.job.message import Message
from dsinga.job.paramconf import ParamConf


class ActivationConf(Message):
    """kActivation."""

    type: ActivationType = ActivationType.RELU


class WindowConf(Message):
    """What convolution and pooling share: kernel, pad and stride, for both directions or each (x across, y down)."""

    kernel: int | None = None
    pad: int | None = None
    stride: int | None = None
    kernel_x: int | None = None
    kernel_y: int | None = None
    pad_x: int | None = None
    pad_y: int | None = None
    stride_x: int | None = None
    stride_y: int | None = None

    def pair(self, field: str, default: int) -> tuple[int, int]:
        """Return (vertical, horizontal) of "kernel", "pad" or "stride": the common value, else each its own."""
        both = getattr(self, field)
        if both is not None:
            return both, both
        sides = (getattr(self, f"{field}_y"), getattr(self, f"{field}_x"))
        return tuple(default if side is None else side for side in sides)  # type: ignore[return-value]


class ConvolutionConf(WindowConf):
    """kConvolution; kernel 3, pad 0, stride 1 by default. Beyond SINGA: it may do without a bias."""

    num_filters: int
    bias_term: bool = True
    workspace_byte_limit: int = 512


class PoolingConf(WindowConf):
    """kPooling; kernel 3, pad 0, stride 2 by default. Beyond SINGA: one window over the whole image (Caffe's name)."""

    pool: PoolMethod = PoolMethod.MAX
    global_pooling: bool = False


class DropoutConf(Message):
    """kDropout: the share of units set to zero. Beyond SINGA: what is such a unit."""

    dropout_ratio: float = 0.5
    unit: DropoutUnit = DropoutUnit.kNumber


class DummyConf(Message):
    """kDummy: a source of random numbers (``input``), an end (``output``), or a pass-through."""

    input: bool = False
    output: bool = False
    shape: list[int] = field(default_factory=list)


class InnerProductConf(Message):
    """kInnerProduct: W is (num_output, inputs), or (inputs, num_output) if ``transpose``."""

    num_output: int
    bias_term: bool = True
    transpose: bool = False


class LRNConf(Message):
    """kLRN."""

    local_size: int = 5
    alpha: float = 1.0
    beta: float = 0.75
    knorm: float = 1.0


class RBMConf(Message):
    """kRBMVis, kRBMHid. Beyond SINGA: the chains of a hidden layer may be ``persistent``."""

    hdim: int
    bias_term: bool = True
    gaussian: bool = False
    persistent: bool = False


class ReLUConf(Message):
    """kReLU."""

    negative_slope: float = 0.0


class SoftmaxConf(Message):
    """kSoftmax."""

    num_softmax_per_instance: int = 1


class RecurrentConf(Message):
    """What recurrent layers share: the width of their state.

    Beyond SINGA: ``bidirectional``, and ``carry``, by which a batch begins with the state that the one before ended
    with; unset, it does so where it reads on in the same texts (kCharRNN), with one worker group.
    """

    dim_hidden: int
    bias_term: bool = True
    bidirectional: bool = False
    carry: bool | None = None


class GRUConf(RecurrentConf):
    """kGRU."""


class LSTMConf(RecurrentConf):
    """kLSTM."""


class RNNConf(RecurrentConf):
    """kRNN."""


class EmbeddingConf(Message):
    """kEmbedding."""

    vocab_size: int = 0
    feature_dim: int = 100


class BMConf(Message):
    """kBM. Beyond SINGA: the share of the newest batch in the running statistics (PyTorch's name)."""

    momentum: float = 0.1


class LayerNormConf(Message):
    """kLayerNorm: the first of the axes that are normalised together."""

    first_axis: int = 1


class SoftmaxLossConf(Message):
    """kSoftmaxLoss."""

    topk: int = 1
    scale: float = 1.0


class ClassSoftmaxLossConf(Message):
    """kClassSoftmaxLoss: the number of words, and the first word of each class."""

    vocab_size: int
    class_start: list[int] = field(default_factory=list)


class EuclideanLossConf(Message):
    """kEuclideanLoss."""

    scale: float = 1.0


class SigmoidCrossEntropyLossConf(Message):
    """kSigmoidCrossEntropyLoss."""

    scale: float = 1.0


class HingeLossConf(Message):
    """kHingeLoss."""

    norm: HingeNorm = HingeNorm.L1
    margin: float = 1.0
    topk: int = 1
    scale: float = 1.0


class ArgSortConf(Message):
    """kArgSort, kAccuracy."""

    topk: int = 1


class ConcateConf(Message):
    """kConcate."""

    concate_dim: int = 0
    num_concates: int = 1


class SliceConf(Message):
    """kSlice."""

    slice_dim: int = 0
    num_slices: int = 1


class SplitConf(Message):
    """kSplit."""

    num_splits: int = 1


class RNNDummyConf(Message):
    """kRNNDummy."""

    dynamic_srclayer: str | None = None
    shape: list[int] = field(default_factory=list)
    integer: bool = False
    low: float = 0.0
    high: float = 0.0


class LayerConf(Message):
    """A layer: its type, its sources, its params, the phases it belongs to, and the configuration of its type.

    ``unroll_len`` is the number of time steps, None for the net's; an explicit 1 keeps the layer out of unrolling.
    ``unroll_index`` is the step of a copy that unrolling has made, None in a job. ``per_step`` computes a layer that
    knows one step at each step of whole sequences, however many they have: nothing is unrolled, and phases may differ.
    Beyond SINGA 0.3's source: ``location``, which its documentation and the paper have (5.3), puts the layer on one
    worker of the group.
    """

    aliases: ClassVar = {"srclayer": "srclayers"}

    name: str
    type: LayerType = LayerType.kUserLayer
    user_type: str | None = None
    srclayers: list[str] = field(default_factory=list)
    include: list[Phase] = field(default_factory=list)
    exclude: list[Phase] = field(default_factory=list)
    share_src_blobs: bool = False
    unroll_len: int | None = None
    unroll_index: int | None = None
    per_step: bool = False
    unroll_conn_type: list[UnrollConnType] = field(default_factory=list)
    shift: list[int] = field(default_factory=list)
    partition_dim: int | None = None
    partition_id: int = 0
    num_partitions: int = 1
    location: int | None = None
    store_conf: StoreConf | None = None
    lmdbdata_conf: DataConf | None = None
    mnist_conf: MnistConf | None = None
    rgbimage_conf: RGBImageConf | None = None
    sharddata_conf: DataConf | None = None
    char_rnn_conf: CharRNNConf | None = None
    onehot_conf: OnehotConf | None = None
    activation_conf: ActivationConf | None = None
    convolution_conf: ConvolutionConf | None = None
    dropout_conf: DropoutConf | None = None
    dummy_conf: DummyConf | None = None
    innerproduct_conf: InnerProductConf | None = None
    lrn_conf: LRNConf | None = None
    pooling_conf: PoolingConf | None = None
    rbm_conf: RBMConf | None = None
    relu_conf: ReLUConf | None = None
    softmax_conf: SoftmaxConf | None = None
    gru_conf: GRUConf | None = None
    lstm_conf: LSTMConf | None = None
    rnn_conf: RNNConf | None = None
    embedding_conf: EmbeddingConf | None = None
    bm_conf: BMConf | None = None
    layernorm_conf: LayerNormConf | None = None
    softmaxloss_conf: SoftmaxLossConf | None = None
    classsoftmaxloss_conf: ClassSoftmaxLossConf | None = None
    euclideanloss_conf: EuclideanLossConf | None = None
    sigmoidcrossentropyloss_conf: SigmoidCrossEntropyLossConf | None = None
    hingeloss_conf: HingeLossConf | None = None
    argsort_conf: ArgSortConf | None = None
    concate_conf: ConcateConf | None = None
    slice_conf: SliceConf | None = None
    split_conf: SplitConf | None = None
    rnn_dummy_conf: RNNDummyConf | None = None
    extensions: dict[str, Any] = field(default_factory=dict)
    param: list[ParamConf] = field(default_factory=list)

    @property
    def type_name(self) -> str:
        """The name to look the layer's class up by: ``user_type`` for a kUserLayer, else the type's."""
        return self.user_type or "" if self.type is LayerType.kUserLayer else self.type.name

    def in_phase(self, phase: Phase) -> bool:
        """Whether the layer belongs to the net of ``phase``."""
        return included(self.include, self.exclude, phase)


def included(include: Collection[Phase], exclude: Collection[Phase], phase: Phase) -> bool:
    """Whether a layer with this ``include`` and ``exclude`` belongs to ``phase``; it does unless they say otherwise."""
    return (not include or phase in include) and phase not in exclude
