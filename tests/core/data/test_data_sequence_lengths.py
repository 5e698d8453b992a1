"""Batches of sequences of similar lengths: each record once an epoch, from any worker, and less padding."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dsinga
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.data import open_records, write_store
from dsinga.job import Job, Phase, loads
from dsinga.reading.checked_job import CheckedJob
from dsinga.reading.sampler import Sampler, SequenceLengths, padding_share
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same

STEPS = 12


def codes(count: int, seed: int = 0) -> np.ndarray:
    """Return sequences (count, STEPS) of 1 to STEPS codes, and -1 after their ends."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, (count, STEPS)).astype(np.int32)
    x[np.arange(STEPS) >= rng.integers(1, STEPS + 1, count)[:, None]] = -1
    return x


def by_length(sampler: Sampler, x: np.ndarray, grouped: int = 10) -> Sampler:
    return replace(sampler, lengths=SequenceLengths(open_records(x)), grouped=grouped)


@given(
    length=st.integers(1, 300),
    batchsize=st.integers(1, 40),
    chunk=st.integers(1, 60),
    skip=st.integers(0, 400),
    grouped=st.integers(1, 9),
)
def test_each_epoch_has_every_record_once_and_parts_are_those_of_the_batch(length, batchsize, chunk, skip, grouped):
    plain = Sampler(length, batchsize, 5, chunk, skip=skip)
    sampler = by_length(plain, codes(length), grouped)
    steps = range(-(-3 * length // batchsize))
    rows = np.concatenate([sampler.rows(step) for step in steps])
    epochs = np.concatenate([sampler.epochs(step, 0, batchsize) for step in steps])
    for epoch in range(epochs[0] + 1, epochs[-1]):
        np.testing.assert_array_equal(np.sort(rows[epochs == epoch]), np.arange(length))
    assert len(set(rows[epochs == epochs[0]].tolist())) == (epochs == epochs[0]).sum()
    again = pickle.loads(pickle.dumps(sampler))
    for step in (*steps[::-1], 0):
        start, stop = batchsize // 3, batchsize // 3 + 1
        np.testing.assert_array_equal(
            again.rows(step, start, stop), rows[step * batchsize + start : step * batchsize + stop]
        )


def test_batches_have_similar_lengths_in_a_random_order() -> None:
    x, plain = codes(1000), Sampler(1000, 20, 1, 100)
    sampler, lengths = by_length(plain, x, 25), (x != -1).sum(axis=1)
    orders = [[lengths[each.rows(step)] for step in range(50)] for each in (plain, sampler)]
    shares = [padding_share(batches) for batches in orders]
    assert shares[0] > 0.4
    assert shares[1] < 0.06
    means = np.array([batch.mean() for batch in orders[1]])
    assert abs(np.corrcoef(means[:25], np.arange(25))[0, 1]) < 0.5  # the batches of a group are not sorted
    in_order = replace(sampler, shuffle=False)
    np.testing.assert_array_equal(in_order.rows(1), np.arange(20, 40))


def test_lengths_are_those_of_codes_or_of_labels_by_step() -> None:
    x, rows = codes(30), np.array([29, 3, 3, 0])
    expected = (x != -1).sum(axis=1)[rows]
    np.testing.assert_array_equal(SequenceLengths(open_records(x)).of(rows), expected)
    np.testing.assert_array_equal(SequenceLengths(open_records(x.astype(np.int64))).of(rows), expected)
    features = np.zeros((30, STEPS, 2), np.float32)
    np.testing.assert_array_equal(SequenceLengths(open_records((features, x.astype(int)))).of(rows), expected)
    np.testing.assert_array_equal(SequenceLengths(open_records(x), 4).of(rows), np.minimum(expected, 4))
    with pytest.raises(UserError, match="takes sequences: records of codes, or with a label for each step"):
        SequenceLengths(open_records((features, np.zeros(30, int))))
    refused(lambda: SequenceLengths(open_records(np.full((30, 4), 0.5))), "takes sequences")


JOB = """
name: "words" train_steps: 6
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "words.zarr" batchsize: 16 group_by_length: 5 } }
  layer { name: "ends" type: kSequenceLength srclayers: "data" }
  layer { name: "embed" type: kEmbedding srclayers: "data" embedding_conf { vocab_size: 9 feature_dim: 4 } }
  layer { name: "gru" type: kGRU srclayers: ["embed", "ends"] gru_conf { dim_hidden: 5 } }
  layer { name: "pool" type: kPooling1D srclayers: ["gru", "ends"] }
  layer { name: "ip" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of 100 sequences and their classes, and the job that reads it."""
    path = tmp_path_factory.mktemp("words")
    write_store(path / "words.zarr", [(codes(100), np.arange(100) % 3)])
    (path / "job.conf").write_text(JOB)
    return path


def job(folder: Path, *overrides: str) -> Job:
    return loads(JOB, str(folder / "job.conf"), list(overrides))


def test_workers_micro_batches_and_a_resumed_run_read_the_same_batches(folder: Path, tmp_path: Path) -> None:
    whole = dsinga.train(job(folder), progress=False).params
    for override in ("micro_batches=4", "cluster.nworkers_per_group=2"):
        assert_close(dsinga.train(job(folder, override), progress=False).params, whole, 2e-6)
    dsinga.train(job(folder, "train_steps=3"), workspace=tmp_path, progress=False)
    assert_same(dsinga.train(job(folder), workspace=tmp_path, resume=True, progress=False).params, whole)
    reader = CheckedJob(job(folder), [str(folder)]).reader(Phase.kTest)
    assert reader.sampler.lengths is None  # tests have records in their order


def test_show_prints_the_share_of_padding_before_and_after(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main_group, ["show", str(folder / "job.conf"), "--svg", str(tmp_path / "net.svg")])
    (line,) = [line for line in result.output.splitlines() if line.startswith("padding")]
    shuffled, grouped = (float(word[:-1]) for word in line.split() if word.endswith("%"))
    assert shuffled > 40 > 25 > grouped


def test_records_that_are_no_sequences_are_refused(tmp_path: Path) -> None:
    write_store(tmp_path / "words.zarr", [(np.full((40, 3), 0.5, np.float32), np.zeros(40, int))])
    refused(lambda: dsinga.train(job(tmp_path), progress=False), "group_by_length takes", "leave it out")
