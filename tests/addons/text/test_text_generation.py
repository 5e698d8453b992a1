"""Text generation: step by step as over whole sequences, the same text for a seed, and refused nets."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dsinga
import dsinga.job
from dsinga.addons.text.generation import draw, generated_codes, generator
from dsinga.base.errors import UserError
from dsinga.commands.cli import main_group
from dsinga.data import import_records
from dsinga.job import Job, Phase, loads
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.models import char_rnn
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import forward
from tests.support.refusals import refused

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
    params = {
        name: rng.normal(0, 1, param.shape).astype(np.float32) for name, param in text_generator.net.params.items()
    }
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
