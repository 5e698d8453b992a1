"""Nets to cut, with every type of layer between them, and the ways to cut them."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dsinga.job import LayerConf, Phase, loads
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.installed import is_installed

BATCH = 10
NETS: dict[str, str] = {}

NETS["convnet"] = """
layer { name: "data" type: kRecordInput store_conf { path: "x" batchsize: 10 shape: [3, 9, 9] } }
layer { name: "conv1" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "pool1" type: kPooling srclayers: "conv1" pooling_conf { pool: MAX kernel: 3 stride: 2 } }
layer { name: "relu1" type: kReLU srclayers: "pool1" }
layer { name: "norm1" type: kLRN srclayers: "relu1" lrn_conf { local_size: 3 alpha: 0.05 } }
layer { name: "drop1" type: kDropout srclayers: "norm1" dropout_conf { dropout_ratio: 0.3 } }
layer { name: "conv2" type: kConvolution srclayers: "drop1" convolution_conf { num_filters: 5 kernel: 3 } }
layer { name: "bm2" type: kBM srclayers: "conv2" }
layer { name: "ip1" type: kInnerProduct srclayers: "bm2" innerproduct_conf { num_output: 13 } }
layer { name: "sigmoid" type: kSigmoid srclayers: "ip1" }
layer { name: "ip2" type: kInnerProduct srclayers: "sigmoid" innerproduct_conf { num_output: 10 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }
"""

# The other types, in two paths and back, by the job's own connection layers; three losses, outputs at several places.
NETS["zoo"] = """
layer { name: "images" type: kShardData sharddata_conf { path: "x" batchsize: 10 } }
layer { name: "rgb" type: kRGBImage srclayers: "images" rgbimage_conf { cropsize: 6 mirror: true scale: 0.5 } }
layer { name: "crop" type: kImagePreprocess srclayers: "rgb" rgbimage_conf { cropsize: 5 } }
layer { name: "mnist" type: kMnist srclayers: "crop" mnist_conf { norm_a: 2 norm_b: 1 } }
layer { name: "conv1" type: kCConvolution srclayers: "mnist" convolution_conf { num_filters: 6 kernel: 3 pad: 1 } }
layer { name: "split" type: kSplit srclayers: "conv1" split_conf { num_splits: 2 } }
layer { name: "conv2" type: kCudnnConv srclayers: "split" convolution_conf { num_filters: 5 kernel: 3 pad: 1 } }
layer { name: "pool1" type: kCPooling srclayers: "conv2" pooling_conf { pool: AVG kernel: 2 stride: 1 } }
layer { name: "pool2" type: kCudnnPool srclayers: "split" pooling_conf { pool: MAX kernel: 2 stride: 1 } }
layer { name: "norm" type: kCudnnLRN srclayers: "pool2" lrn_conf { local_size: 3 alpha: 0.1 } }
layer { name: "join" type: kConcate srclayers: ["pool1", "norm"] concate_conf { concate_dim: 1 } }
layer { name: "bm" type: kCudnnBM srclayers: "join" }
layer { name: "ip" type: kInnerProduct srclayers: "bm" innerproduct_conf { num_output: 14 } }
layer { name: "slice" type: kSlice srclayers: "ip" slice_conf { slice_dim: 1 num_slices: 3 } }
layer { name: "tanh" type: kSTanh srclayers: "slice" }
layer { name: "act" type: kActivation srclayers: "slice" activation_conf { type: TANH } }
layer { name: "cudnn" type: kCudnnActivation srclayers: "slice" }
layer { name: "src" type: kBridgeSrc srclayers: "act" }
layer { name: "dst" type: kBridgeDst srclayers: "src" }
layer { name: "again" type: kConcate srclayers: ["tanh", "dst", "cudnn"] concate_conf { concate_dim: 1 } }
layer { name: "rows" type: kCSVInput store_conf { path: "x" batchsize: 10 } }
layer { name: "older" type: kLMDBData lmdbdata_conf { path: "x" batchsize: 10 } }
layer { name: "prelu" type: kPReLU srclayers: "rows" }
layer { name: "encode" type: kInnerProduct srclayers: "prelu" innerproduct_conf { num_output: 14 } }
layer { name: "soft" type: kSoftmax srclayers: "encode" }
layer { name: "decode" type: kInnerProduct srclayers: "soft" innerproduct_conf { num_output: 7 transpose: true }
  param { share_from: "encode_weight" } }
layer { name: "rebuilt" type: kHuberLoss srclayers: ["decode", "older"] }
layer { name: "both" type: kConcate srclayers: ["again", "soft"] concate_conf { concate_dim: 1 } }
layer { name: "soft2" type: kCudnnSoftmax srclayers: "both" }
layer { name: "one" type: kInnerProduct srclayers: "soft2" innerproduct_conf { num_output: 1 } }
layer { name: "label" type: kLabel srclayers: "bm" }
layer { name: "distance" type: kEuclideanLoss srclayers: ["one", "label"] }
layer { name: "scores" type: kInnerProduct srclayers: "both" innerproduct_conf { num_output: 10 } }
layer { name: "dummy" type: kDummy srclayers: "scores" }
layer { name: "loss" type: kCudnnSoftmaxLoss srclayers: ["dummy", "rgb"] }
layer { name: "hits" type: kAccuracy srclayers: ["scores", "images"] }
layer { name: "error" type: kRegressionError srclayers: ["one", "images"] }
layer { name: "table" type: kConfusionMatrix srclayers: ["scores", "images"] }
layer { name: "auc" type: kGatheredMetrics srclayers: ["loss", "images"]
  gatheredmetrics_conf { metric: "roc_auc" metric: "average_precision" } }
layer { name: "top3" type: kTopKAccuracy srclayers: ["scores", "images"] topkaccuracy_conf { k: 3 } }
layer { name: "perplexity" type: kPerplexity srclayers: ["loss", "images"] }
layer { name: "top" type: kArgSort srclayers: "soft2" argsort_conf { topk: 2 } }
layer { name: "csv" type: kCSVOutput srclayers: "top" store_conf { path: "out" } }
layer { name: "out" type: kRecordOutput srclayers: "bm" store_conf { path: "out" } }
"""

# Images and texts that belong together, in two paths with a label loss each and the distance between their codes.
NETS["mdnn"] = """
layer { name: "images" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "conv" type: kConvolution srclayers: "images" convolution_conf { num_filters: 4 kernel: 3 stride: 2 } }
layer { name: "image_code" type: kInnerProduct srclayers: "conv" innerproduct_conf { num_output: 6 } }
layer { name: "image_scores" type: kInnerProduct srclayers: "image_code" innerproduct_conf { num_output: 10 } }
layer { name: "image_label" type: kSoftmaxLoss srclayers: ["image_scores", "images"] softmaxloss_conf { scale: 0.7 } }
layer { name: "rows" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "hidden" type: kInnerProduct srclayers: "rows" innerproduct_conf { num_output: 9 } }
layer { name: "tanh" type: kSTanh srclayers: "hidden" }
layer { name: "text_code" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 6 } }
layer { name: "text_scores" type: kInnerProduct srclayers: "text_code" innerproduct_conf { num_output: 10 } }
layer { name: "text_label" type: kSoftmaxLoss srclayers: ["text_scores", "images"] softmaxloss_conf { scale: 1.5 } }
layer { name: "distance" type: kEuclideanLoss srclayers: ["image_code", "text_code"] euclideanloss_conf { scale: 0.2 } }
"""

# Two paths that are added and multiplied, and losses of scores without a softmax.
NETS["residual"] = """
layer { name: "images" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "conv1" type: kConvolution srclayers: "images" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "conv2" type: kConvolution srclayers: "conv1" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "sum" type: kAdd srclayers: ["conv1", "conv2"] }
layer { name: "norm" type: kLayerNorm srclayers: "sum" }
layer { name: "gate" type: kSigmoid srclayers: "conv2" }
layer { name: "gated" type: kMultiply srclayers: ["norm", "gate"] }
layer { name: "order" type: kReshape srclayers: "gated" reshape_conf { shape: [8, -1, 7] } }
layer { name: "scaled" type: kRMSNorm srclayers: "order" }
layer { name: "pool" type: kPooling srclayers: "scaled" pooling_conf { pool: AVG global_pooling: true } }
layer { name: "scores" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 10 } }
layer { name: "hinge" type: kHingeLoss srclayers: ["scores", "images"] }
layer { name: "rows" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "other" type: kInnerProduct srclayers: "rows" innerproduct_conf { num_output: 10 } }
layer { name: "target" type: kSigmoid srclayers: "other" }
layer { name: "cross" type: kSigmoidCrossEntropyLoss srclayers: ["scores", "target"] }
"""

# Sequences of different lengths through recurrent layers, with a label for each step.
NETS["sequences"] = """
layer { name: "words" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "embed" type: kEmbedding srclayers: "words" embedding_conf { vocab_size: 7 feature_dim: 4 } }
layer { name: "onehot" type: kOneHot srclayers: "words" onehot_conf { vocab_size: 7 } }
layer { name: "gru" type: kGRU srclayers: ["embed", "words"] gru_conf {
  dim_hidden: 4 bidirectional: true gate_activation: TANH candidate_activation: RELU } }
layer { name: "wide" type: kInnerProduct srclayers: "onehot" innerproduct_conf { num_output: 5 } per_step: true }
layer { name: "rnn" type: kRNN srclayers: ["wide", "words"] rnn_conf { dim_hidden: 8 } }
layer { name: "both" type: kConcate srclayers: ["gru", "rnn"] concate_conf { concate_dim: 2 } }
layer { name: "lstm" type: kLSTM srclayers: ["both", "words"] lstm_conf {
  dim_hidden: 6 gate_activation: SIGMOID candidate_activation: SIGMOID cell_activation: IDENTITY } }
layer { name: "scores" type: kInnerProduct srclayers: "lstm" innerproduct_conf { num_output: 10 } per_step: true }
layer { name: "tags" type: kCRF srclayers: ["scores", "words"] }
layer { name: "found" type: kEntityF1 srclayers: ["tags", "words"] }
layer { name: "next" type: kClassSoftmaxLoss srclayers: ["lstm", "words"] per_step: true
  classsoftmaxloss_conf { vocab_size: 10 class_start: [0, 2, 5] } }
layer { name: "sampled" type: kSampledLoss srclayers: ["lstm", "words"] sampledloss_conf { vocab_size: 10 } }
"""

# Sequences that attend to themselves, with 12 heads, which any number of workers up to four divides.
NETS["attention"] = """
layer { name: "words" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "embed" type: kEmbedding srclayers: "words" embedding_conf { vocab_size: 7 feature_dim: 8 } }
layer { name: "position" type: kPositionalEncoding srclayers: "embed" positionalencoding_conf { scale: 2 } }
layer { name: "query" type: kInnerProduct srclayers: "position" innerproduct_conf { num_output: 24 } per_step: true }
layer { name: "key" type: kInnerProduct srclayers: "position" innerproduct_conf { num_output: 24 } per_step: true }
layer { name: "value" type: kInnerProduct srclayers: "position" innerproduct_conf { num_output: 24 } per_step: true }
layer { name: "heads" type: kAttention srclayers: ["query", "key", "value", "words"]
  attention_conf { num_heads: 12 causal: true } }
layer { name: "gelu" type: kActivation srclayers: "heads" activation_conf { type: GELU } }
layer { name: "drop" type: kDropout srclayers: "gelu" dropout_conf { dropout_ratio: 0.2 } per_step: true }
layer { name: "again" type: kAttention srclayers: ["drop", "value", "words"]
  attention_conf { num_heads: 12 score: kAdditive } }
layer { name: "scores" type: kInnerProduct srclayers: "again" innerproduct_conf { num_output: 10 } per_step: true }
layer { name: "loss" type: kSoftmaxLoss srclayers: ["scores", "words"] per_step: true }
layer { name: "weights" type: kAttentionWeights srclayers: ["query", "key", "words"]
  attention_conf { num_heads: 12 causal: true } }
"""

# Sentences as one row each: pooled over their steps, and compared.
NETS["sentences"] = """
layer { name: "words" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "lengths" type: kSequenceLength srclayers: "words" }
layer { name: "embed" type: kEmbedding srclayers: "lengths" embedding_conf { vocab_size: 7 feature_dim: 5 } }
layer { name: "conv" type: kConvolution1D srclayers: ["embed", "lengths"]
  convolution1d_conf { num_filters: 6 kernel: 3 pad: 1 } }
layer { name: "most" type: kPooling1D srclayers: ["conv", "lengths"] pooling1d_conf { pool: MAX } }
layer { name: "rnn" type: kRNN srclayers: ["embed", "lengths"] rnn_conf { dim_hidden: 6 } }
layer { name: "last" type: kPooling1D srclayers: ["rnn", "lengths"] pooling1d_conf { pool: LAST } }
layer { name: "cosine" type: kCosineSimilarity srclayers: ["most", "last"] }
layer { name: "rows" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "label" type: kLabel srclayers: "rows" }
layer { name: "loss" type: kEuclideanLoss srclayers: ["cosine", "label"] }
"""

# A policy of ten actions, which are the labels of records. Losses without a lower bound have a small scale, or params
# would grow, and rounding with them.
NETS["policy"] = """
layer { name: "rows" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "policy" type: kInnerProduct srclayers: "rows" innerproduct_conf { num_output: 10 } }
layer { name: "label" type: kLabel srclayers: "rows" }
layer { name: "one" type: kInnerProduct srclayers: "rows" innerproduct_conf { num_output: 1 } }
layer { name: "gradient" type: kPolicyGradientLoss srclayers: ["policy", "label", "one"]
        policygradientloss_conf { scale: 0.02 } }
layer { name: "ppo" type: kPPOLoss srclayers: ["policy", "label", "one", "one"] ppoloss_conf { scale: 0.02 } }
layer { name: "entropy" type: kEntropyLoss srclayers: "policy" }
layer { name: "learnt" type: kLearnedVector srclayers: "rows" learnedvector_conf { num_output: 10 } }
layer { name: "duel" type: kDueling srclayers: ["one", "learnt"] }
layer { name: "values" type: kAdd srclayers: ["policy", "duel"] }
layer { name: "difference" type: kTDLoss srclayers: ["values", "label", "one"] }
layer { name: "mean" type: kMeanLoss srclayers: "values" meanloss_conf { scale: 0.02 } }
"""

# Losses of pairs and triplets of rows, of probabilities, and of labels without places in time.
NETS["distances"] = """
layer { name: "rows" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "older" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "anchor" type: kInnerProduct srclayers: "rows" innerproduct_conf { num_output: 6 } }
layer { name: "like" type: kInnerProduct srclayers: "older" innerproduct_conf { num_output: 6 } }
layer { name: "chances" type: kSigmoid srclayers: "like" }
layer { name: "absolute" type: kAbsoluteLoss srclayers: ["anchor", "chances"] absoluteloss_conf { scale: 0.1 } }
layer { name: "focal" type: kFocalLoss srclayers: ["anchor", "chances"] }
layer { name: "divergence" type: kKLDivergenceLoss srclayers: ["anchor", "chances"] }
layer { name: "angle" type: kCosineLoss srclayers: ["anchor", "like"] }
layer { name: "triplet" type: kTripletLoss srclayers: ["anchor", "like", "chances"] }
layer { name: "speech" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "sounds" type: kInnerProduct srclayers: "speech" innerproduct_conf { num_output: 11 } per_step: true }
layer { name: "said" type: kCTCLoss srclayers: ["sounds", "speech"] ctcloss_conf { blank: 10 } }
"""

# Fields of 8 x 7 points through the layers of a U-Net.
NETS["fields"] = """
layer { name: "images" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "conv0" type: kConvolution srclayers: "images" convolution_conf { num_filters: 6 kernel: 3 pad: 1 } }
layer { name: "pad" type: kPadding srclayers: "conv0"
  padding_conf { before: 1 after: [1, 2] mode: [kEdge, kPeriodic] } }
layer { name: "conv1" type: kConvolution srclayers: "pad" convolution_conf { num_filters: 12 kernel: 3 } }
layer { name: "groups" type: kGroupNorm srclayers: "conv1" groupnorm_conf { groups: 12 } }
layer { name: "depthwise" type: kConvolution srclayers: "groups"
  convolution_conf { num_filters: 12 group: 12 pad: 2 dilation: 2 } }
layer { name: "mixed" type: kConvolution srclayers: "depthwise" convolution_conf { num_filters: 8 group: 4 kernel: 1 } }
layer { name: "pool" type: kPooling srclayers: "mixed" pooling_conf { kernel: 2 stride: 2 } }
layer { name: "grow" type: kTransposedConvolution srclayers: "pool"
  transposedconvolution_conf { num_filters: 5 kernel: 2 stride: 2 } }
layer { name: "larger" type: kUpsampling srclayers: "pool" upsampling_conf { method: kLinear } }
layer { name: "resized" type: kResize srclayers: "pool" resize_conf { scale: 2 method: kCubic } }
layer { name: "join" type: kConcate srclayers: ["groups", "grow", "larger", "resized"] concate_conf { concate_dim: 1 } }
layer { name: "crop" type: kCropping srclayers: "join" cropping_conf { before: [0, 1] after: 2 } }
layer { name: "normal" type: kNormalization srclayers: "crop" normalization_conf { mean: 1 std: 2 } }
layer { name: "scores" type: kInnerProduct srclayers: "normal" innerproduct_conf { num_output: 10 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: ["scores", "images"] }
"""

# Targets that are fields, with masked points, and weights of points in their last channel; a class for each point;
# and a weight for each record.
NETS["targets"] = """
layer { name: "grid" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "first" type: kConvolution srclayers: "grid" convolution_conf { num_filters: 6 kernel: 3 pad: 1 } }
layer { name: "relu" type: kReLU srclayers: "first" }
layer { name: "fields" type: kConvolution srclayers: "relu" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
layer { name: "targets" type: kLabel srclayers: "grid" }
layer { name: "share" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "squares" type: kEuclideanLoss srclayers: ["fields", "targets", "share"]
  euclideanloss_conf { scale: 0.004 masked: true weighted: true std: [0.5, 1, 2, 4] } }
layer { name: "robust" type: kHuberLoss srclayers: ["fields", "targets"]
  huberloss_conf { scale: 0.004 masked: true weighted: true } }
layer { name: "map" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "conv" type: kConvolution srclayers: "map" convolution_conf { num_filters: 10 kernel: 3 pad: 1 } }
layer { name: "points" type: kFieldSoftmaxLoss srclayers: ["conv", "map", "share"]
  fieldsoftmaxloss_conf { scale: 0.03 } }
layer { name: "dice" type: kDiceLoss srclayers: ["conv", "map"] diceloss_conf { smooth: 1 } }
layer { name: "overlaps" type: kSegmentationScore srclayers: ["points", "map"] }
layer { name: "errors" type: kFieldError srclayers: ["fields", "grid", "fields"]
  fielderror_conf { masked: true weighted: true channel: ["t", "u", "v", "z"] } }
layer { name: "pairs" type: kConvolution srclayers: "relu" convolution_conf { num_filters: 8 kernel: 3 pad: 1 } }
layer { name: "params" type: kDistributionParams srclayers: "pairs" distributionparams_conf { distribution: laplace } }
layer { name: "likely" type: kDistributionLoss srclayers: ["params", "targets", "share"]
  distributionloss_conf { distribution: laplace score: crps scale: 0.004 masked: true weighted: true } }
layer { name: "levels" type: kQuantileLoss srclayers: ["pairs", "targets"]
  quantileloss_conf { quantile: [0.2, 0.7] scale: 0.004 masked: true weighted: true } }
layer { name: "spread" type: kEnsembleLoss srclayers: ["pairs", "targets"]
  ensembleloss_conf { members: 2 scale: 0.004 masked: true weighted: true } }
layer { name: "honest" type: kForecastScores srclayers: ["params", "grid"]
  forecastscores_conf { distribution: laplace masked: true weighted: true } }
"""

# Volumes of 4 x 6 x 5 points through convolution, normalisation and pooling; four steps of images of 6 x 5 through
# convolutional LSTMs.
NETS["volumes"] = """
layer { name: "volumes" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "conv1" type: kConvolution srclayers: "volumes"
  convolution_conf { num_filters: 6 kernel: 3 pad: 1 stride_z: 2 } }
layer { name: "bm1" type: kBM srclayers: "conv1" }
layer { name: "pool1" type: kPooling srclayers: "bm1" pooling_conf { kernel: 2 stride: 1 } }
layer { name: "drop1" type: kDropout srclayers: "pool1" dropout_conf { dropout_ratio: 0.3 } }
layer { name: "conv2" type: kConvolution srclayers: "drop1" convolution_conf { num_filters: 12 kernel: 2 same: true } }
layer { name: "groups" type: kGroupNorm srclayers: "conv2" groupnorm_conf { groups: 12 } }
layer { name: "pool2" type: kPooling srclayers: "groups" pooling_conf { pool: AVG global_pooling: true } }
layer { name: "grow" type: kTransposedConvolution srclayers: "drop1"
  transposedconvolution_conf { num_filters: 5 kernel: 2 stride_x: 2 } }
layer { name: "left" type: kInnerProduct srclayers: "pool2" innerproduct_conf { num_output: 12 } }
layer { name: "right" type: kInnerProduct srclayers: "grow" innerproduct_conf { num_output: 12 } }
layer { name: "steps" type: kPermute srclayers: "volumes" permute_conf { dims: [2, 1, 3, 4] } }
layer { name: "encoder" type: kConvLSTM srclayers: "steps"
  convlstm_conf { num_filters: 5 same: true stride: 2 last: true } }
layer { name: "again" type: kRepeat srclayers: "encoder" repeat_conf { times: 3 } }
layer { name: "decoder" type: kConvLSTM srclayers: "again" convlstm_conf { num_filters: 4 kernel: 2 pad: 1 } }
layer { name: "frames" type: kInnerProduct srclayers: "decoder" innerproduct_conf { num_output: 12 } }
layer { name: "sum" type: kAdd srclayers: ["left", "right", "frames"] }
layer { name: "scores" type: kInnerProduct srclayers: "sum" innerproduct_conf { num_output: 10 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: ["scores", "volumes"] }
"""

# Four nets that are trained as one, which dimension 1 cuts by members; a loss of each kind.
NETS["members"] = """
layer { name: "rows" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "scaled" type: kColumnScale srclayers: "rows" }
layer { name: "some" type: kIndex srclayers: "rows" index_conf { index: ":4" } }
layer { name: "kinks" type: kPiecewiseLinear srclayers: "some"
  piecewiselinear_conf { edge: [-1, 0, 1, -1, 1, 0, 0.5, 1, 2, 0, 3] edges: [3, 2, 4, 2] width: 2 } }
layer { name: "waves" type: kPeriodic srclayers: "some" periodic_conf { waves: 3 width: 1 } }
layer { name: "inputs" type: kConcate srclayers: ["scaled", "kinks", "waves"] concate_conf { concate_dim: 1 } }
layer { name: "first" type: kBatchEnsemble srclayers: "inputs" batchensemble_conf { num_output: 6 members: 4 } }
layer { name: "relu" type: kReLU srclayers: "first" }
layer { name: "drop" type: kDropout srclayers: "relu" dropout_conf { dropout_ratio: 0.3 } }
layer { name: "second" type: kBatchEnsemble srclayers: "drop" batchensemble_conf { num_output: 5 members: 4 } }
layer { name: "heads" type: kMemberDense srclayers: "second" memberdense_conf { num_output: 10 } }
layer { name: "scores" type: kMemberMean srclayers: "heads" membermean_conf { of: CLASSES } }
layer { name: "loss" type: kMemberSoftmaxLoss srclayers: ["scores", "rows", "heads", "share"] }
layer { name: "share" type: kRecordInput store_conf { path: "x" batchsize: 10 } }
layer { name: "other" type: kInnerProduct srclayers: "rows" innerproduct_conf { num_output: 10 } }
layer { name: "target" type: kSigmoid srclayers: "other" }
layer { name: "answers" type: kMemberMean srclayers: "heads" membermean_conf { of: ANSWERS } }
layer { name: "cross" type: kMemberSigmoidLoss srclayers: ["answers", "target", "heads"] }
layer { name: "numbers" type: kMemberMean srclayers: "heads" }
layer { name: "squares" type: kMemberEuclideanLoss srclayers: ["numbers", "target", "heads"] }
"""

# Tested apart: texts go on from batch to batch (addons/text), machines are trained by kCD (core/net), kVTraceLoss
# takes a step more of one source (rl), kContrastiveLoss two classes (cutting), kReliability one of two (core/layers);
# kLeadRecord belongs to nets of several leads (addons/fields), kCategories to records of tables (addons/tables).
ELSEWHERE = {
    *"kVTraceLoss kCharRNN kCharRNNOutput kRNNDummy kRNNLabel kRBMHid kRBMVis kContrastiveLoss kUserLayer".split(),
    *"kCachedAttention kArithmetic kIndex kFunction kFunctionLoss kCategories kLeadRecord kReliability".split(),
}
INFOS = {
    "words": RecordInfo((6,), BATCH, label_shape=(6,), codes=7),
    "data": RecordInfo((3, 9, 9), BATCH),
    "images": RecordInfo((3, 8, 7), BATCH),
    "volumes": RecordInfo((2, 4, 6, 5), BATCH),
    "rows": RecordInfo((7,), BATCH),
    "share": RecordInfo((), BATCH),
    "older": RecordInfo((7,), BATCH),
    "speech": RecordInfo((12, 5), BATCH, label_shape=(3,)),
    "map": RecordInfo((2, 6, 5), BATCH, label_shape=(6, 5)),
    "grid": RecordInfo((2, 6, 5), BATCH, label_shape=(5, 6, 5), label_dtype=np.float32),
}
TOO_NARROW = (  # fewer numbers a row than four workers
    "normal words lengths embed onehot mnist one label distance top error table cosine csv angle triplet".split()
)
IMAGE_TYPES = ("Conv", "Pool", "LRN", "BM", "Image", "Mnist")

Placing = Callable[[int, int, LayerConf, int], LayerConf]


def cut_by(dim: int) -> Placing:
    """Return the strategy that cuts every layer along ``dim``."""

    def place(number: int, count: int, conf: LayerConf, parts: int) -> LayerConf:
        narrow = dim == 1 and conf.name in TOO_NARROW
        return conf.replace(partition_dim=0 if narrow else dim)

    return place


def by_location(number: int, count: int, conf: LayerConf, parts: int) -> LayerConf:
    """Put neighbouring layers on one worker, the next ones on the next."""
    return conf.replace(location=number * parts // count)


def hybrid(number: int, count: int, conf: LayerConf, parts: int) -> LayerConf:
    """Cut fully connected layers and what is near them by features, images by rows (Krizhevsky 2014)."""
    images = conf.type.name in ("kRecordInput", "kShardData") or any(name in conf.type.name for name in IMAGE_TYPES)
    return cut_by(0 if images else 1)(number, count, conf, parts)


def mixed(number: int, count: int, conf: LayerConf, parts: int) -> LayerConf:
    """Take turns: rows, features, one worker, another one."""
    choice = (7 * number) % 4
    if choice == 3:
        return conf.replace(location=number % parts)
    return cut_by((0, 1, -1)[choice])(number, count, conf, parts)


def blocks(number: int, count: int, conf: LayerConf, parts: int) -> LayerConf:
    """Cut fields by space along both axes."""
    return conf.replace(partition_dim=2, partition_grid=[2, parts // 2] if parts % 2 == 0 else [1, parts])


STRATEGIES: dict[str, Placing] = {
    "rows": cut_by(0),
    "features": cut_by(1),
    "none": cut_by(-1),
    "locations": by_location,
    "hybrid": hybrid,
    "mixed": mixed,
}
# Each net with two ways to cut it, each way with four nets: for what holds however nets are cut. That a net trains as
# on one worker is tested for all pairs.
PAIRS = [(name, [*STRATEGIES][(number + shift) % 6]) for number, name in enumerate(NETS) for shift in (0, 3)]

SPACE: dict[str, Placing] = {"stripes": cut_by(2), "columns": cut_by(3), "blocks": blocks}


def installed_text(name: str) -> str:
    """Return the text of one of NETS without layers of add-ons that are not there, and those that follow them."""
    kept, missing = [], set[str]()
    for text in re.split(r"(?m)^(?=layer \{)", NETS[name]):
        layer, *sources = re.findall(r'"([^"]+)"', text) or [""]
        if missing & {*sources} or any(
            not is_installed("layer", kind) for kind in re.findall(r"type: (k\w+)", text)[:1]
        ):
            missing.add(layer)
        else:
            kept.append(text)
    return "".join(kept)


def net_of(
    name: str, strategy: str = "rows", parts: int = 1, phase: Phase = Phase.kTrain, micro_batches: int = 0
) -> NeuralNet:
    """Build one of NETS, each layer cut or placed as the strategy says for so many workers.

    With ``micro_batches`` it is a net for such parts of a batch, without statistics of batches.
    """
    conf = loads(f"neuralnet {{ {installed_text(name)} }}", f"{name}.conf").neuralnet
    count = len(conf.layer)
    layers = [(STRATEGIES | SPACE)[strategy](number, count, layer, parts) for number, layer in enumerate(conf.layer)]
    infos = {layer.name: INFOS[layer.name] for layer in layers if layer.name in INFOS}
    if micro_batches:
        layers = [
            layer.replace(bm_conf={"use_global_stats": True}) if "BM" in layer.type.name else layer for layer in layers
        ]
        size = BATCH // micro_batches
        infos = {name: replace(info, batchsize=size, micro_batches=micro_batches) for name, info in infos.items()}
    return create_net(conf.replace(layer=layers), phase, infos)
