"""The settings of neuron layers, which compute features from features (SINGA 0.3's job.proto)."""

from __future__ import annotations

from typing import Annotated

from dsinga.job.enums import (
    CellActivation,
    PoolMethod,
    StepPoolMethod,
)
from dsinga.job.limits import Count, Padding, Pixels, Range, Steps
from dsinga.job.message import Message


class WindowConf(Message):
    """Settings shared by convolution and pooling: kernel, pad and stride, for both directions or each (x, y)."""

    kernel: Pixels | None = None
    pad: Padding | None = None
    stride: Pixels | None = None
    kernel_x: Pixels | None = None
    kernel_y: Pixels | None = None
    pad_x: Padding | None = None
    pad_y: Padding | None = None
    stride_x: Pixels | None = None
    stride_y: Pixels | None = None

    def pair(self, field: str, default: int) -> tuple[int, int]:
        """Return (vertical, horizontal) of "kernel", "pad" or "stride"."""
        both = getattr(self, field)
        if both is not None:
            return both, both
        sides = (getattr(self, f"{field}_y"), getattr(self, f"{field}_x"))
        return tuple(default if side is None else side for side in sides)  # type: ignore[return-value]


class ConvolutionConf(WindowConf):
    """Settings of kConvolution; kernel 3, pad 0, stride 1 by default. Beyond SINGA: ``bias_term`` may be false."""

    num_filters: Count
    bias_term: bool = True
    workspace_byte_limit: int = 512


class PoolingConf(WindowConf):
    """Settings of kPooling; kernel 3, pad 0, stride 2 by default. Beyond SINGA: ``global_pooling``, as in Caffe."""

    pool: PoolMethod = PoolMethod.MAX
    global_pooling: bool = False


class Convolution1DConf(Message):
    """Settings of kConvolution1D: filters, and the windows of steps that they take.

    ``pad`` is the number of zero steps before and after each sequence. ``same`` pads so that a stride of 1 gives as
    many steps as there are, with one more after than before if ``kernel`` is even.
    """

    num_filters: Count
    kernel: Steps = 3
    stride: Steps = 1
    pad: Annotated[int, Range(0, 100_000)] = 0
    same: bool = False
    bias_term: bool = True


class Pooling1DConf(Message):
    """Settings of kPooling1D: how many steps are pooled together, all without ``kernel``; ``stride`` is ``kernel``."""

    pool: StepPoolMethod = StepPoolMethod.MAX
    kernel: Steps | None = None
    stride: Steps | None = None


class InnerProductConf(Message):
    """Settings of kInnerProduct: its weight is (num_output, inputs), or (inputs, num_output) if ``transpose``."""

    num_output: Count
    bias_term: bool = True
    transpose: bool = False


class RBMConf(Message):
    """Settings of kRBMVis and kRBMHid. Beyond SINGA: the Gibbs chains of a hidden layer may be ``persistent``."""

    hdim: Count
    bias_term: bool = True
    gaussian: bool = False
    persistent: bool = False


class RecurrentConf(Message):
    """Settings shared by recurrent layers: the width of the hidden state.

    Beyond SINGA: ``bidirectional``, and ``carry``, which begins a batch with the last state of the batch before. By
    default the state is carried where batches continue the same texts (kCharRNN) in a job with one worker group.
    With ``initial_state`` the last of the srclayers gives the state before the first step.
    """

    dim_hidden: Count
    bias_term: bool = True
    bidirectional: bool = False
    carry: bool | None = None
    initial_state: bool = False


class GRUConf(RecurrentConf):
    """Settings of kGRU. As in PaddlePaddle: the activations of the gates z and r, and of the candidate c."""

    gate_activation: CellActivation = CellActivation.SIGMOID
    candidate_activation: CellActivation = CellActivation.TANH


class LSTMConf(RecurrentConf):
    """Settings of kLSTM: the activations of the gates i, f and o, of the candidate g, and of the cell state c'."""

    gate_activation: CellActivation = CellActivation.SIGMOID
    candidate_activation: CellActivation = CellActivation.TANH
    cell_activation: CellActivation = CellActivation.TANH


class RNNConf(RecurrentConf):
    """Settings of kRNN."""


class EmbeddingConf(Message):
    """Settings of kEmbedding: the number of different codes, and the width of their vectors.

    ``dense_gradient`` makes the gradient a whole array, so that updaters move all rows in each step.
    """

    vocab_size: Count = 0
    feature_dim: Count = 100
    dense_gradient: bool = False


class LearnedVectorConf(Message):
    """Settings of kLearnedVector: how many numbers it has."""

    num_output: Count
