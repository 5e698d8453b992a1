"""The configuration of neuron layers, which compute features of features (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dsinga.job.enums import ActivationType, DropoutUnit, PoolMethod
from dsinga.job.message import Message


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
