"""The schema of a layer: LayerProto of SINGA 0.3's job.proto."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any, ClassVar

from dsinga.job.connectionconf import ConcateConf, DummyConf, RNNDummyConf, SliceConf, SplitConf
from dsinga.job.enums import LayerType, Phase, UnrollConnType
from dsinga.job.inputconf import CharRNNConf, DataConf, MnistConf, OnehotConf, RGBImageConf, StoreConf
from dsinga.job.lossconf import (
    ArgSortConf,
    ClassSoftmaxLossConf,
    EntropyLossConf,
    EuclideanLossConf,
    HingeLossConf,
    MeanLossConf,
    PolicyGradientLossConf,
    PPOLossConf,
    SampledLossConf,
    SigmoidCrossEntropyLossConf,
    SoftmaxLossConf,
    TDLossConf,
    VTraceLossConf,
)
from dsinga.job.message import Message
from dsinga.job.neuronconf import (
    ActivationConf,
    AttentionConf,
    BMConf,
    Convolution1DConf,
    ConvolutionConf,
    CosineSimilarityConf,
    DropoutConf,
    EmbeddingConf,
    GRUConf,
    InnerProductConf,
    LayerNormConf,
    LearnedVectorConf,
    LRNConf,
    LSTMConf,
    Pooling1DConf,
    PoolingConf,
    PositionalEncodingConf,
    RBMConf,
    ReLUConf,
    RNNConf,
    SoftmaxConf,
)
from dsinga.job.paramconf import ParamConf


class LayerConf(Message):
    """A layer: its type, its sources, its params, the phases it belongs to, and the settings of its type.

    ``unroll_len`` is the number of time steps, None for the net's; 1 keeps the layer out of unrolling. ``unroll_index``
    is the time step of a copy made by unrolling, None in a job. ``per_step`` applies a layer for single steps to each
    step of whole sequences, without unrolling, so that phases may have sequences of different lengths. Beyond SINGA
    0.3's source: ``location``, which its documentation and the paper have (5.3), puts the layer on one worker of the
    group.
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
    attention_conf: AttentionConf | None = None
    positionalencoding_conf: PositionalEncodingConf | None = None
    embedding_conf: EmbeddingConf | None = None
    bm_conf: BMConf | None = None
    layernorm_conf: LayerNormConf | None = None
    convolution1d_conf: Convolution1DConf | None = None
    pooling1d_conf: Pooling1DConf | None = None
    cosinesimilarity_conf: CosineSimilarityConf | None = None
    softmaxloss_conf: SoftmaxLossConf | None = None
    classsoftmaxloss_conf: ClassSoftmaxLossConf | None = None
    sampledloss_conf: SampledLossConf | None = None
    policygradientloss_conf: PolicyGradientLossConf | None = None
    ppoloss_conf: PPOLossConf | None = None
    entropyloss_conf: EntropyLossConf | None = None
    tdloss_conf: TDLossConf | None = None
    meanloss_conf: MeanLossConf | None = None
    vtraceloss_conf: VTraceLossConf | None = None
    learnedvector_conf: LearnedVectorConf | None = None
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
        """The registered name of the layer's class: ``user_type`` for a kUserLayer, else the name of the type."""
        return self.user_type or "" if self.type is LayerType.kUserLayer else self.type.name

    def in_phase(self, phase: Phase) -> bool:
        """Whether the layer belongs to the net of ``phase``."""
        return included(self.include, self.exclude, phase)


def included(include: Collection[Phase], exclude: Collection[Phase], phase: Phase) -> bool:
    """Whether a layer with this ``include`` and ``exclude`` belongs to ``phase``; without them it belongs to all."""
    return (not include or phase in include) and phase not in exclude
