"""The undamaged jobs of ``python -m tools.faults jobs``, and the stores that they read: tiny, and unlike each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HEAD = """# A job with a comment.
name: "{name}"
train_steps: 2
seed: 3
disp_freq: 1
"""

MLP = """train_one_batch { alg: kBP }
updater {
  type: kSGD momentum: 0.9 weight_decay: 5e-4 clip_norm: 10
  learning_rate { type: kStep base_lr: 0.05 step_conf { gamma: 0.97 change_freq: 1 } }
}
neuralnet {
  layer {
    name: "data" type: kRecordInput
    store_conf { path: "train.zarr" batchsize: 8 shape: 36 std_value: 2 mean_value: 0.5 random_skip: 1 }
  }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 5 }
    param { name: "w1" init { type: kUniform low: -0.05 high: 0.05 } wd_scale: 0.5 }
    param { name: "b1" lr_scale: 2 init { type: kConstant value: 0 } } }
  layer { name: "tanh" type: kSTanh srclayers: "hidden" }
  layer { name: "drop" type: kDropout srclayers: "tanh" dropout_conf { dropout_ratio: 0.2 } }
  layer { name: "out" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 3 transpose: true }
    param { name: "w2" init { type: kGaussian mean: 0 std: 0.1 } } param { name: "b2" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "out" srclayers: "data" softmaxloss_conf { topk: 1 } }
  layer { name: "accuracy" type: kAccuracy srclayers: "out" srclayers: "data" include: kTest }
}
"""

IMAGES = """test_freq: 2 test_steps: 1
updater { type: kAdam adam_conf { beta1: 0.9 beta2: 0.99 } learning_rate { type: kFixed base_lr: 0.001 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "train.zarr" batchsize: 6 shape: 1 shape: 6 shape: 6 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "test.zarr" batchsize: 4 shape: [1, 6, 6] } }
  layer { name: "crop" type: kImagePreprocess srclayers: "data" rgbimage_conf { cropsize: 5 mirror: true scale: 0.5 } }
  layer { name: "conv" type: kConvolution srclayers: "crop" convolution_conf { num_filters: 4 kernel: 3 pad: 1 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "norm" type: kBM srclayers: "conv" bm_conf { momentum: 0.2 } }
  layer { name: "relu" type: kReLU srclayers: "norm" relu_conf { negative_slope: 0.1 } }
  layer { name: "lrn" type: kLRN srclayers: "relu" lrn_conf { local_size: 3 alpha: 5e-5 beta: 0.75 } }
  layer { name: "pool" type: kPooling srclayers: "lrn" pooling_conf { pool: AVG kernel: 2 stride: 2 } }
  layer { name: "ip" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 3 }
    param { name: "w2" init { type: kUniformSqrtFanInOut } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""

CHARS = """validate_freq: 1 validate_steps: 1
train_one_batch { alg: kBPTT }
updater { type: kRMSProp rmsprop_conf { rho: 0.95 } clip_low: -5 clip_high: 5
  learning_rate { type: kFixedStep fixedstep_conf { step: [0, 1] step_lr: [0.01, 0.001] } } }
neuralnet {
  unroll_len: 3
  layer { name: "data" type: kCharRNN unroll_len: 1 include: kTrain
    char_rnn_conf { path: "text/train_data.zarr" vocab_path: "text/vocab.txt" batchsize: 4 unroll_len: 3 } }
  layer { name: "data" type: kCharRNN unroll_len: 1 include: kVal
    char_rnn_conf { path: "text/test_data.zarr" batchsize: 2 unroll_len: 3 } }
  layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
    onehot_conf { vocab_size: 6 } }
  layer { name: "label" type: kRNNLabel srclayers: "data" unroll_conn_type: kUnrollOneToAll }
  layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 4 bias_term: false }
    param { name: "z" init { type: kUniform low: -0.3 high: 0.3 } } }
  layer { name: "lstm" type: kLSTM srclayers: "gru" lstm_conf { dim_hidden: 3 carry: true } }
  layer { name: "ip" type: kInnerProduct srclayers: "lstm" innerproduct_conf { num_output: 6 }
    param { name: "w" init { type: kUniform low: -0.3 high: 0.3 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "label" }
}
"""

RBM = """train_one_batch { alg: kCD cd_conf { cd_k: 2 } }
updater { type: kAdaGrad delta: 1e-7 learning_rate { type: kLinear base_lr: 0.1 linear_conf {
  change_freq: 10 final_lr: 0.01 } } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "test.zarr" batchsize: 5 shape: 36 std_value: 3 } }
  layer { name: "vis" type: kRBMVis srclayers: "data" srclayers: "hid" rbm_conf { hdim: 4 }
    param { name: "w" init { type: kGaussian std: 0.1 } } param { name: "bv" init { type: kConstant value: 0.0 } } }
  layer { name: "hid" type: kRBMHid srclayers: "vis" rbm_conf { hdim: 4 gaussian: true persistent: true }
    param { name: "w_" share_from: "w" } param { name: "bh" } }
}
"""

WORKERS = """
cluster { nworkers_per_group: 2 nservers_per_group: 2 sync_freq: 1 compression: kTopK topk_share: 0.5 slicing: kBlock }
updater { type: kNesterov momentum: 0.5 learning_rate {
  type: kInverse base_lr: 0.1 inverse_conf { gamma: 0.5 pow: 1 } } }
neuralnet {
  partition_dim: 0
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 8 shape: 36 } }
  layer { name: "slice" type: kSlice srclayers: "data" slice_conf { slice_dim: 1 num_slices: 2 } }
  layer { name: "a" type: kInnerProduct srclayers: "slice" innerproduct_conf { num_output: 4 } partition_dim: 1 }
  layer { name: "b" type: kInnerProduct srclayers: "slice" innerproduct_conf { num_output: 4 } location: 1
    param { name: "bw" } }
  layer { name: "both" type: kConcate srclayers: ["a", "b"] concate_conf { concate_dim: 1 num_concates: 2 } }
  layer { name: "act" type: kActivation srclayers: "both" activation_conf { type: SIGMOID } }
  layer { name: "split" type: kSplit srclayers: "act" split_conf { num_splits: 2 } }
  layer { name: "ip" type: kInnerProduct srclayers: "split" innerproduct_conf { num_output: 36 } }
  layer { name: "ln" type: kLayerNorm srclayers: "split" layernorm_conf { first_axis: 1 } }
  layer { name: "rows" type: kSoftmax srclayers: "ln" softmax_conf { num_softmax_per_instance: 2 } }
  layer { name: "loss" type: kEuclideanLoss srclayers: "ip" srclayers: "data" euclideanloss_conf { scale: 0.5 } }
}
"""

GROUPS = """
cluster { nworker_groups: 2 nserver_groups: 2 nworkers_per_group: 1 nservers_per_group: 1 sync_topology: kRing
  sync_edge { group: [0, 1] } sync_freq: 1 }
warmup_steps: 1
updater { type: kAdaDelta adadelta_conf { rho: 0.9 } learning_rate { type: kExponential base_lr: 0.1
  exponential_conf { change_freq: 2 } } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 8 shape: 36 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kHingeLoss srclayers: "ip" srclayers: "data" hingeloss_conf { norm: L2 margin: 0.5 } }
}
"""

EXTENSIONS = """
validate_freq: 1 validate_steps: 1 validate_after: 1 checkpoint_freq: 1 checkpoint_keep: 1 skip_bad_batches: true
extension { type: kEarlyStopping monitor: "val/loss" mode: min patience: 3 min_delta: 0.001 }
extension { type: kKeepBest monitor: "val/accuracy" mode: max }
extension { type: kReduceOnPlateau monitor: "val/loss" factor: 0.5 patience: 2 cooldown: 1 min_factor: 0.01 }
extension { type: kStopOnTime seconds: 3600 }
extension { type: kCSV path: "history.csv" }
updater { type: kAdamMax adammax_conf { beta1: 0.9 beta2: 0.99 } learning_rate { type: kInverseT base_lr: 0.1
  inverset_conf { final_lr: 10 } } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain store_conf { path: "train.zarr" batchsize: 8 shape: 36 } }
  layer { name: "data" type: kRecordInput include: kVal include: kTest
    store_conf { path: "test.zarr" batchsize: 4 shape: 36 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" exclude: kDeploy }
}
"""

TEXTS = {
    "mlp": MLP, "images": IMAGES, "chars": CHARS, "rbm": RBM, "workers": WORKERS, "groups": GROUPS,
    "extensions": EXTENSIONS,
}  # fmt: skip
JOBS = {name: HEAD.format(name=name) + text for name, text in TEXTS.items()}


def write_job_inputs(folder: Path) -> None:
    """Write the job files, and the stores of the records that they read."""
    from dsinga.data import import_records, write_store

    random = np.random.default_rng(1)
    for name, count in (("train", 40), ("test", 12)):
        labels = random.integers(3, size=count)
        records = random.integers(0, 4, (count, 1, 6, 6)).astype(np.uint8)
        write_store(str(folder / f"{name}.zarr"), [(records, labels)])
    letters = folder / "letters.txt"
    letters.write_text("".join(random.choice([*"abcdef"], 400)))
    (folder / "text").mkdir()
    import_records("text", letters, folder / "text", held_out=0.2)
    for name, text in JOBS.items():
        (folder / f"{name}.conf").write_text(text)
