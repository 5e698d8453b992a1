"""Text generation: step by step as over whole sequences, the same text for a seed, and refused nets."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client

import dsinga
import dsinga.job
from dsinga.addons.text.generation import draw, generated_codes, generator
from dsinga.api import build_net, evaluate, train
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.data import import_records, write_store
from dsinga.job import ClusterConf, Job, LayerConf, Phase, loads
from dsinga.job.reader import with_fields
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.models import char_rnn
from dsinga.net import create_net
from dsinga.net.unroll import unroll
from dsinga.ops import get_ops
from dsinga.reading.batch_reader import WorkerBatches
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import forward
from tests.cluster.runs.test_cluster_records import of_phase
from tests.cluster.runs.test_loop_resumed import Kind, check_resumed
from tests.support.merged_nets import assert_same_training, both
from tests.support.net_cases import names
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same, with_topology
from tests.support.train_in_threads import train_in_threads

SYMBOLS = "abcde"
SAMPLE = """
name: "sample" test_steps: 4
neuralnet {
  layer { name: "data" type: kRNNDummy
    rnn_dummy_conf { shape: 1 integer: true low: 0 high: 5 dynamic_srclayer: "argsort" } }
  layer { name: "onehot" type: kOneHot srclayers: "data" }
  layer { name: "gru1" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 16 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "gru1" innerproduct_conf { num_output: 5 } }
  layer { name: "softmax" type: kSoftmax srclayers: "ip1" }
  layer { name: "argsort" type: kArgSort srclayers: "softmax" }
  layer { name: "sampling" type: kCharRNNOutput srclayers: "argsort" char_rnn_conf { vocab_path: "vocab.txt" } }
}
"""


def small(**fields: object) -> Job:
    return char_rnn(len(SYMBOLS), hidden=16, steps=6, batchsize=4, **fields)


@pytest.fixture(scope="module")
def params() -> dict[str, np.ndarray]:
    net = generator(small().neuralnet, len(SYMBOLS)).net
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 1, param.shape).astype(np.float32) for name, param in net.params.items()}


@pytest.mark.parametrize("cell", ["kGRU", "kLSTM", "kRNN"])
def test_each_step_continues_as_the_whole_sequence(cell: str):
    """The most probable codes of a generated text are those that the training net scores highest along that text."""
    conf = small(cell=cell, layers=2).neuralnet
    text_generator, rng = generator(conf, len(SYMBOLS)), np.random.default_rng(2)
    params = {name: rng.normal(0, 1, p.shape).astype(np.float32) for name, p in text_generator.net.params.items()}
    begin = [3, 0]
    text = [*begin, *generated_codes(text_generator, params, begin, 5, temperature=0)]
    whole = create_net(conf, Phase.kTest, {"data": RecordInfo((7,), 1, has_labels=False)})
    records = {"data": Records(np.array([text], np.int64))}
    outputs, _ = forward(whole, params, records, Context(get_ops(), Phase.kTest, Rows(0, 1, 1)), ("ip1",))
    assert outputs["ip1"].feature[0].argmax(axis=1)[1:].tolist() == text[2:]


def test_the_same_seed_gives_the_same_text(params: dict[str, np.ndarray]):
    text_generator = generator(small().neuralnet, len(SYMBOLS))
    texts = [tuple(generated_codes(text_generator, params, [0], 40, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_temperature_flattens_the_distribution():
    scores, rng = np.log(np.array([0.1, 0.2, 0.7], np.float32)), np.random.default_rng(0)
    shares = {heat: np.bincount([draw(scores, heat, rng) for _ in range(4000)]) / 4000 for heat in (0.5, 1.0, 100.0)}
    np.testing.assert_allclose(shares[1.0], [0.1, 0.2, 0.7], atol=0.03)
    np.testing.assert_allclose(shares[0.5], np.array([0.01, 0.04, 0.49]) / 0.54, atol=0.03)
    np.testing.assert_allclose(shares[100.0], [1 / 3] * 3, atol=0.03)
    assert draw(scores, 0, rng) == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trained job, whose text has one follower for each letter, and its checkpoint."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "input").write_text(SYMBOLS * 400)
    (folder / "vocab.txt").write_text(SYMBOLS)
    import_records("text", folder / "input", folder, held_out=0.1)
    job = small(data=str(folder), train_steps=60, test_freq=0, disp_freq=0, checkpoint_freq=60)
    rate = {"type": "kFixed", "base_lr": 0.02}
    job = job.replace(updater=job.updater.replace(learning_rate=rate))
    dsinga.train(job, workspace=folder / "workspace", progress=False, workers=1)
    (folder / "job.conf").write_text(dsinga.job.to_text(job))
    (folder / "sample.conf").write_text(SAMPLE)
    return folder


@pytest.mark.parametrize("name", ["job.conf", "sample.conf"])
def test_a_learned_text_is_continued(trained: Path, name: str):
    """SINGA's job for samples, which has no text and no vocabulary size, continues it, too."""
    text = dsinga.generate(trained / name, trained / "workspace" / "checkpoint", "cd", 12, 0.1)
    assert text == "eabcdeabcdea"


def test_the_command_writes_the_text(trained: Path):
    options = ["--checkpoint", str(trained / "workspace" / "checkpoint"), "--length", "7", "--temperature", "0"]
    done = CliRunner().invoke(main_group, ["generate", str(trained / "job.conf"), *options, "--seed-text", "abc"])
    assert (done.exit_code, done.output) == (0, "abcdeabcde\n")


def test_words_are_separated_by_spaces(trained: Path, tmp_path: Path):
    (tmp_path / "input").write_text("a b c d\n" * 400)  # with </s>, as many words as the net has characters
    import_records("text", tmp_path / "input", tmp_path, held_out=0.1, words=True)
    text = dsinga.generate(small(data=str(tmp_path)), trained / "workspace" / "checkpoint", "a b", 6)
    assert text[0] == " "
    assert len(text.split()) == 6


def test_a_text_begins_with_any_character(trained: Path):
    texts = {dsinga.generate(trained / "job.conf", trained / "workspace/checkpoint", "", 3, 0, k)[0] for k in range(30)}
    assert texts == set(SYMBOLS)


def test_mistakes_are_named_with_their_remedies(trained: Path, params: dict[str, np.ndarray]) -> None:
    with pytest.raises(UserError, match=r"the vocabulary of 5 characters has no 'X', 'Z'"):
        dsinga.generate(trained / "job.conf", trained / "workspace/checkpoint", "aZX")
    text_generator = generator(small().neuralnet, len(SYMBOLS))
    refused(lambda: list(generated_codes(text_generator, {}, [0], 1)), r"a param 'gru1_z_hx' of shape \(16, 5\).* lack")
    with pytest.raises(UserError, match=r"'ip1_bias' of shape \(5,\), but the given one has \(3,\)"):
        list(generated_codes(text_generator, {**params, "ip1_bias": np.zeros(3, np.float32)}, [0], 1))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ('layer { name: "data" type: kDummy dummy_conf { input: true shape: 2 } }', "no kCharRNN layer"),
        ('layer { name: "data" type: kCharRNN char_rnn_conf { path: "x" } }', "no kSoftmaxLoss or kSoftmax"),
        (SAMPLE.split("{", 1)[1].rsplit("}", 1)[0].replace("dim_hidden: 16", "dim_hidden: 16 bidirectional: true"),
         "'gru1' is bidirectional"),
    ],
)  # fmt: skip
def test_nets_that_cannot_generate_are_refused(net: str, message: str):
    refused(lambda: generator(loads(f'name: "j" neuralnet {{ {net} }}').neuralnet, 5), message)


# SINGA's char-rnn on a small text: partitioned, resumed, with states carried from batch to batch, validated.
STATE = "gru1_state"
JOB = """
name: "char-rnn" train_steps: 8 disp_freq: 4 validate_freq: 4 validate_steps: 2 gpu: 0
train_one_batch { alg: kBPTT }
updater { type: kRMSProp rmsprop_conf { rho: 0.95 } clip_low: -5 clip_high: 5
  learning_rate { type: kStep base_lr: 0.01 step_conf { gamma: 0.97 change_freq: 5 } } }
neuralnet {
  unroll_len: 6
  layer { name: "data" type: kCharRNN unroll_len: 1 include: kTrain
    char_rnn_conf { path: "train_data.zarr" vocab_path: "vocab.txt" batchsize: 8 unroll_len: 6 } }
  layer { name: "data" type: kCharRNN unroll_len: 1 include: kVal
    char_rnn_conf { path: "test_data.zarr" batchsize: 3 unroll_len: 6 } }
  layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
    onehot_conf { vocab_size: 12 } }
  layer { name: "label" type: kRNNLabel srclayers: "data" unroll_conn_type: kUnrollOneToAll }
  layer { name: "gru1" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 9 }
    param { name: "z_hx" init { type: kUniform low: -0.3 high: 0.3 } }
    param { name: "r_hx" init { type: kUniform low: -0.3 high: 0.3 } }
    param { name: "c_hx" init { type: kUniform low: -0.3 high: 0.3 } } }
  layer { name: "ip1" type: kInnerProduct srclayers: "gru1" innerproduct_conf { num_output: 12 }
    param { name: "w" init { type: kUniform low: -0.3 high: 0.3 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "label" }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of a text in which each of twelve letters has three followers; its last tenth is held out."""
    place = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(3)
    letters, at = [], 0
    for jump in rng.integers(1, 4, 3000):
        at = (at + int(jump)) % 12
        letters.append("abcdefghijkl"[at])
    (place / "input").write_text("".join(letters))
    import_records("text", place / "input", place, held_out=0.1)
    return place


@pytest.fixture
def job(folder: Path) -> Job:
    return loads(JOB, str(folder / "job.conf"))


CARRY = "neuralnet.layer[gru1].gru_conf.carry"
PATH = "neuralnet.layer[data,kVal].char_rnn_conf.path"


def test_workers_train_to_the_params_of_one(job: Job, threads: Client) -> None:
    single = train(job.replace(blocks=3), progress=False)
    cut = train(with_topology(job.replace(blocks=3), 3), threads, progress=False)  # of 3, 3 and 2 rows
    assert single.params[STATE].shape == (8, 9)
    assert np.abs(single.params[STATE]).max(axis=1).min() > 0.01  # every row has a state
    assert_same(cut.params, single.params)
    assert [row["loss"] for row in cut.history] == [row["loss"] for row in single.history]


def test_a_carried_state_changes_the_params(job: Job, threads: Client) -> None:
    carried, begun = (train(conf, threads, progress=False) for conf in (job, with_fields(job, {CARRY: "false"})))
    assert STATE not in begun.params
    assert evaluate(job, carried.params, "train", threads)["loss"] < 3
    assert np.abs(carried.params["w"] - begun.params["w"]).max() > 1e-4


def test_a_job_with_another_batch_size_starts_with_new_states(job: Job, threads: Client, tmp_path: Path) -> None:
    train(job.replace(train_steps=1), threads, workspace=tmp_path, progress=False)
    smaller = with_fields(job, {"neuralnet.layer[data,kTrain].char_rnn_conf.batchsize": 5})
    smaller = smaller.replace(name="smaller", checkpoint_path=[str(tmp_path)], train_steps=1)
    assert train(smaller, threads, progress=False).params[STATE].shape == (5, 9)


def test_it_learns_and_is_validated_on_held_out_text(job: Job, threads: Client, tmp_path: Path) -> None:
    result = train(job.replace(train_steps=120, validate_freq=60), threads, workspace=tmp_path, progress=False)
    losses = result.history.phase("val")[:, "loss"]
    assert losses[0] == pytest.approx(np.log(12), abs=0.15)  # nats a character, the mean over steps
    assert losses[-1] < 1.5  # log 3 = 1.1 is the best
    metrics = evaluate(job, tmp_path / "checkpoint", "val", threads)
    assert metrics["loss"] == pytest.approx(losses[-1], abs=0.1)
    assert STATE not in build_net(job, "val").params


def test_records_beside_a_text_are_read_in_its_order(job: Job, folder: Path) -> None:
    length = len(CheckedJob(job, [str(folder)]).reader(Phase.kTrain))
    write_store(folder / "marks.zarr", [(np.arange(length, dtype=np.float32)[:, None], None)])
    settings = {"path": "marks.zarr", "batchsize": 8}
    marks = LayerConf(name="marks", type="kRecordInput", unroll_len=1, store_conf=settings)
    net = job.neuralnet.replace(layer=[marks, *job.neuralnet.layer])
    reader = CheckedJob(job.replace(neuralnet=net), [str(folder)]).reader(Phase.kTrain)
    read = WorkerBatches(reader, {"marks": reader.parts[0]})(1)["marks"].data
    np.testing.assert_array_equal(read[:, 0], np.arange(8, 16))


def test_several_worker_groups_carry_no_state(job: Job, threads: Client) -> None:
    job = job.replace(cluster=ClusterConf(nworker_groups=2, nserver_groups=1))
    result = train(job, threads, progress=False)
    assert STATE not in result.params
    assert evaluate(job, result.params, "train", threads)["loss"] < 3
    with pytest.raises(UserError, match=r"layer 'gru1' cannot carry its state over: .*one worker group"):
        train(with_fields(job, {CARRY: "true"}), threads, progress=False)


def test_mistakes_of_texts_are_named_with_their_remedies(job: Job, threads: Client, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"layer 'onehot': 'data' has 12 different codes, but vocab_size is 11"):
        build_net(with_fields(job, {"neuralnet.layer[onehot].onehot_conf.vocab_size": 11}))
    (tmp_path / "other").write_text("abcdefghijk" * 30)
    import_records("text", tmp_path / "other", tmp_path / "other.zarr")
    refusal = r"other.zarr, which phase kVal reads, has another vocabulary than .*train_data"
    refused(lambda: train(with_fields(job, {PATH: str(tmp_path / "other.zarr")}), threads, progress=False), refusal)


@pytest.mark.parametrize("workers", [1, 2])
def test_all_windows_of_a_text(tmp_path: Path, threads: Client, workers: int):
    (tmp_path / "input").write_text("abcdefghijkl" * 200 + "acegikbdfhjl" * 30)
    import_records("text", tmp_path / "input", tmp_path, held_out=0.1)
    job = loads(JOB, str(tmp_path / "job.conf")).replace(validate_steps=0, gpu=[])
    cut = job.replace(cluster=ClusterConf(nworkers_per_group=workers))
    result = train(cut, threads, progress=False)
    assert of_phase(result, "val")[-1] == pytest.approx(evaluate(job, result.params, "val", threads), rel=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
def test_states_carried_from_batch_to_batch_are_those_of_all_rows(folder: Path, workers: int):
    job = with_topology(loads(JOB, str(folder / "job.conf")).replace(validate_freq=0, gpu=[]), workers)
    whole = train_in_threads(job, [str(folder)]).params
    assert whole["gru1_state"].shape == (8, 9)
    assert_close(train_in_threads(job.replace(micro_batches=4), [str(folder)]).params, whole, 5e-6)


def test_a_run_that_was_cut_and_resumed_is_the_unbroken_one(folder: Path, threads: Client, tmp_path: Path) -> None:
    check_resumed(Kind(JOB, {"nworkers_per_group": 2}), folder, tmp_path, threads)


# Copies of a language model over a text, by step, merged into layers over sequences; its text is read by its steps.
STEPS, BATCH, VOCABULARY = 4, 5, 6
INFO = {"data": RecordInfo((STEPS + 1,), BATCH, has_labels=False)}

LANGUAGE_MODEL = """
unroll_len: 4
layer { name: "data" type: kCharRNN unroll_len: 1 char_rnn_conf { path: "x" batchsize: 5 unroll_len: 4 } }
layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
  onehot_conf { vocab_size: 6 } }
layer { name: "label" type: kRNNLabel srclayers: "data" unroll_conn_type: kUnrollOneToAll }
layer { name: "gru" type: kGRU srclayers: "onehot" gru_conf { dim_hidden: 7 }
  param { name: "z" } param { name: "r" } }
layer { name: "drop" type: kDropout srclayers: "gru" dropout_conf { dropout_ratio: 0.3 } }
layer { name: "ip" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 6 } }
layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "label" }
"""


def texts(rows: int = BATCH) -> dict[str, Records]:
    return {"data": Records(np.random.default_rng(0).integers(0, VOCABULARY, (rows, STEPS + 1)).astype(np.uint8))}


def test_the_merged_language_model_trains_like_its_copies():
    merged, unrolled = both(LANGUAGE_MODEL, INFO)
    assert names(merged) == ["data", "onehot", "label", "gru", "drop", "ip", "loss"]
    assert [node.layer.shape for node in merged.nodes] == [
        (5, 5), (5, 4, 6), (5, 4), (5, 4, 7), (5, 4, 7), (5, 4, 6), (5, 4, 6)
    ]  # fmt: skip
    assert len([name for name in names(unrolled) if "#" in name]) >= 6 * STEPS
    assert "data" in names(unrolled)
    assert list(merged.params) == [
        "z", "r", "gru_c_hx", "gru_z_hh", "gru_r_hh", "gru_c_hh", "gru_z_b", "gru_r_b", "gru_c_b",
        "ip_weight", "ip_bias",
    ]  # fmt: skip
    assert_same_training(merged, unrolled, texts())


def test_a_text_of_another_number_of_steps_than_its_layers_is_refused_with_its_place():
    text = (
        'neuralnet { unroll_len: 3\nlayer { name: "data" type: kRecordInput unroll_len: 1 }\n'
        'layer { name: "t" type: kCharRNN unroll_len: 1 char_rnn_conf {\nunroll_len: 5 } }\n'
        'layer { name: "x" type: kOneHot srclayers: "t" unroll_conn_type: kUnrollOneToAll }\n}'
    )
    refused(lambda: unroll(loads(text, "job.conf").neuralnet), "conf:4: ", "5 characters", "'x' has 3")
