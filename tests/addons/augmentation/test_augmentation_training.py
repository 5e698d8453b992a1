"""Augmentation in training: cuts, processes and resumed runs change no bit of the batches, nor of the params."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from dsinga.base.errors import UserError
from dsinga.engine.local_net import LocalNet
from dsinga.job import ClusterConf, Job, Phase, loads
from dsinga.layers import Rows
from dsinga.reading.batch_reader import WorkerBatches
from dsinga.reading.bind_records import bind_records
from dsinga.reading.checked_job import CheckedJob
from tests.support.small_job import assert_close, assert_same
from tests.support.train_in_threads import train_in_threads

JOB = """
name: "augmented" train_steps: 6 seed: 3
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 12 std_value: 128 AUGMENT } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" } }
  layer { name: "relu" type: kReLU srclayers: "conv" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 10 }
    param { name: "w2" init { type: kUniformSqrtFanIn } } param { name: "b2" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
ALL = """
augment { type: kRandomCrop pad: 2 } augment { type: kRandomFlip vertical: 0.5 } augment { type: kRandomRotation }
augment { type: kColorJitter brightness: 0.4 contrast: 0.4 saturation: 0.4 hue: 0.1 } augment { type: kRandAugment }
augment { type: kCutMix probability: 0.5 } augment { type: kRandomResizedCrop size: 8 } augment { type: kRandomErasing }
augment { type: kMixup probability: 0.7 } augment { type: kLighting }
"""
CROP = "augment { type: kRandomCrop size: 8 } augment { type: kRandomFlip }"
X = np.random.default_rng(0).integers(0, 256, (40, 3, 10, 12), dtype=np.uint8)
Y = np.arange(40) % 10


def job(augment: str = ALL, **fields) -> Job:
    made = bind_records(loads(JOB.replace("AUGMENT", augment)), (X, Y))
    return made.replace(**fields)


def cut(made: Job, workers: int, *, dims: dict[str, int] | None = None, servers: int = 1, groups: int = 1) -> Job:
    layers = [
        layer.replace(partition_dim=(dims or {}).get(layer.name, layer.partition_dim)) for layer in made.neuralnet.layer
    ]
    cluster = ClusterConf(nworkers_per_group=workers, nservers_per_group=servers, nworker_groups=groups)
    return made.replace(cluster=cluster, neuralnet=made.neuralnet.replace(layer=layers))


def whole_batch(made: Job, step: int, group: int = 0, groups: int = 1):
    reader = CheckedJob(made).reader(Phase.kTrain, 1, groups)
    return WorkerBatches(reader, {"data": reader.parts[0]}, group)(step)["data"]


@settings(max_examples=25)
@given(step=st.integers(0, 12), bounds=st.lists(st.integers(0, 12), max_size=3))
def test_parts_of_a_batch_are_those_of_the_whole(step, bounds):
    whole = whole_batch(job(), step)
    reader = pickle.loads(pickle.dumps(CheckedJob(job()).reader(Phase.kTrain)))  # as in another process
    edges = [0, *sorted(bounds), 12]
    parts = [
        WorkerBatches(reader, {"data": Rows(start, stop, 12)})(step)["data"]
        for start, stop in zip(edges, edges[1:], strict=False)
        if start < stop
    ]
    np.testing.assert_array_equal(np.concatenate([part.data for part in parts]), whole.data)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), whole.labels)


def test_a_record_is_changed_alike_in_batches_of_any_size_and_by_any_number_of_groups():
    one = [whole_batch(job(CROP), step) for step in range(4)]
    in_groups = [whole_batch(job(CROP), step, group, groups=2) for step in range(2) for group in range(2)]
    for first, second in zip(one, in_groups, strict=True):
        np.testing.assert_array_equal(first.data, second.data)
    text = JOB.replace("AUGMENT", CROP).replace("batchsize: 12", "batchsize: 24")
    larger = [whole_batch(bind_records(loads(text), (X, Y)), step) for step in range(2)]
    np.testing.assert_array_equal(np.concatenate([p.data for p in one]), np.concatenate([p.data for p in larger]))


def test_epochs_and_seeds_change_a_record_otherwise():
    text = JOB.replace("AUGMENT", CROP).replace("batchsize: 12", "batchsize: 40")
    made = bind_records(loads(text), (X, Y))
    images = {}
    for seed in (3, 4):
        reader = CheckedJob(made.replace(seed=seed)).reader(Phase.kTrain)
        for epoch in (0, 1):
            order = np.argsort(reader.sampler.rows(epoch))
            images[seed, epoch] = WorkerBatches(reader, {"data": reader.parts[0]})(epoch)["data"].data[order]
    changed = [(images[3, 0] != images[key]).any(axis=(1, 2, 3)).mean() for key in ((3, 1), (4, 0))]
    assert min(changed) > 0.8


@pytest.mark.parametrize(
    ("workers", "dims", "servers"),
    [(3, {}, 1), (2, {"conv": 1, "ip": 1}, 2), (2, {"data": 0, "conv": 0, "ip": 1}, 1), (4, {"ip": 1}, 2)],
)
def test_a_net_that_is_cut_trains_as_the_whole(workers, dims, servers):
    whole = train_in_threads(job())
    parts = train_in_threads(cut(job(), workers, dims=dims, servers=servers))
    assert_close(parts.params, whole.params, 1e-5)
    for first, second in zip(parts.metrics, whole.metrics, strict=True):
        assert list(first.values()) == [pytest.approx(metric, rel=1e-5) for metric in second.values()]


def test_two_runs_have_the_same_bits_and_a_resumed_one_too(tmp_path):
    made = job(checkpoint_freq=3)
    first = dsinga.train(made, workspace=tmp_path / "whole", progress=False)
    second = dsinga.train(made, workspace=tmp_path / "again", progress=False)
    assert_same(first.params, second.params)
    dsinga.train(made.replace(train_steps=3), workspace=tmp_path / "parts", progress=False)
    resumed = dsinga.train(made, workspace=tmp_path / "parts", resume=True, progress=False)
    assert_same(resumed.params, first.params)


def test_other_phases_get_the_centre_and_whole_labels():
    made = bind_records(job("augment { type: kRandomCrop size: 8 } augment { type: kMixup }"), {"test": (X, Y)})
    reader = CheckedJob(made).reader(Phase.kTest)
    records = WorkerBatches(reader, {"data": reader.parts[0]})(0)["data"]
    np.testing.assert_array_equal(records.data, X[:12, :, 1:9, 2:10])
    np.testing.assert_array_equal(records.labels, Y[:12])
    np.testing.assert_array_equal(reader.read_range(3, 5)["data"].data, X[3:5, :, 1:9, 2:10])


def test_arrays_of_another_size_than_the_nets_are_cropped_in_the_centre():
    made = job("augment { type: kRandomCrop size: 8 } augment { type: kMixup }")
    net = LocalNet(made, X, Y)
    params = net.initial_params()
    centre = X[:5, :, 1:9, 2:10]
    np.testing.assert_array_equal(net.predict(params, X[:5], "ip"), net.predict(params, centre, "ip"))
    assert net.evaluate(params, X[:5], Y[:5]) == net.evaluate(params, centre, Y[:5])


def test_images_without_channels_and_flat_ones():
    gray = JOB.replace("AUGMENT", "augment { type: kRandomCrop size: 6 size: 7 } augment { type: kRandomFlip }")
    reader = CheckedJob(bind_records(loads(gray), (X[:, 0], Y))).reader(Phase.kTrain)
    assert reader.infos["data"].shape == (6, 7)
    assert WorkerBatches(reader, {"data": reader.parts[0]})(0)["data"].data.shape == (12, 6, 7)
    flat = JOB.replace("AUGMENT", f"shape: 3 shape: 10 shape: 12 {CROP}")
    made = bind_records(loads(flat), (X.reshape(40, -1), Y))
    np.testing.assert_array_equal(whole_batch(made, 2).data, whole_batch(job(CROP), 2).data)
    assert train_in_threads(made).params.keys() == {"w1", "b1", "w2", "b2"}


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ("augment { type: kRandomCrop sise: 3 }", "layer 'data': AugmentConf has no field 'sise'; did you mean 'size'"),
        ("augment { type: kRandomFlip size: 3 }", "augmentation kRandomFlip has no field 'size'"),
        ("augment { type: kRandomFlip horizontal: 1.5 }", r"horizontal must be in \[0, 1\], not 1.5"),
        ("augment { type: kRandomErasing scale: 0.5 }", "scale must be two numbers"),
        ("augment { type: kRandAugment magnitude: 31 }", "magnitude is 31; give 0 to 30"),
        ("augment { pad: 3 }", "type .*kRandomCrop"),
        ("augment { type: kMixup classes: 12 }", "layer 'loss': has 10 classes, but 'data' gives labels of 12 numbers"),
        ("augment { type: kTruncate length: 5 }", "layer 'data': kTruncate takes sequences of one number a step"),
        ("augment { type: kTruncate }", "length"),
        ("augment { type: kRandomCrop size: 20 }", "layer 'data': kRandomCrop cannot cut 20 x 20"),
        ("shape: 3 shape: 9 shape: 9 augment { type: kRandomFlip }", "shape .*3, 9, 9.* make them equal"),
    ],
)
def test_what_is_wrong_is_refused_before_training(augment, message):
    with pytest.raises(UserError, match=message):
        train_in_threads(job(augment))


@pytest.mark.parametrize("labels_by_step", [False, True])
def test_sequences_are_cut_in_all_phases_with_their_labels(labels_by_step):
    codes = np.random.default_rng(0).integers(0, 9, (30, 12)).astype(np.int32)
    codes[::2, 5:] = -1
    labels = np.where(codes < 0, -1, codes % 3).astype(np.int64) if labels_by_step else np.arange(30) % 3
    text = """
    train_steps: 3 updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
    neuralnet {
      layer { name: "data" type: kRecordInput store_conf { batchsize: 10 CUT } }
      layer { name: "embedding" type: kEmbedding srclayers: "data" embedding_conf { vocab_size: 9 feature_dim: 4 }
        param { name: "e" init { type: kUniform } } }
      layer { name: "ip" type: kInnerProduct srclayers: "embedding" innerproduct_conf { num_output: 3 } STEPS
        param { name: "w" init { type: kUniform } } param { name: "b" } }
      layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" STEPS }
    }""".replace("STEPS", "per_step: true" if labels_by_step else "")
    cutting = loads(text.replace("CUT", "augment { type: kTruncate length: 7 }"))
    plain = loads(text.replace("CUT", ""))
    short = labels[:, :7] if labels_by_step else labels
    first = train_in_threads(cut(bind_records(cutting, (codes, labels)), 2))
    second = train_in_threads(cut(bind_records(plain, (codes[:, :7], short)), 2))
    assert_same(first.params, second.params)
    whole, parts = (LocalNet(each, codes[:, :steps], short) for each, steps in ((cutting, 12), (plain, 7)))
    params = whole.initial_params()
    assert whole.evaluate(params, codes, labels) == parts.evaluate(params, codes[:, :7], short)


def test_layers_that_take_classes_refuse_mixed_labels():
    more = 'layer { name: "accuracy" type: kAccuracy srclayers: "ip" srclayers: "data" EXCLUDE }\n}'
    text = JOB.replace("AUGMENT", "augment { type: kMixup }").rstrip().removesuffix("}") + more
    refused, excluded = (loads(text.replace("EXCLUDE", words)) for words in ("", "exclude: kTrain"))
    with pytest.raises(UserError, match="'accuracy': takes labels that are classes.*kMixup.*exclude: kTrain"):
        train_in_threads(bind_records(refused, (X, Y)))
    assert train_in_threads(bind_records(excluded, (X, Y))).params
